"""``espnet2.bin.asr_train`` from its command line, on two ranks under torch elastic: sixteen sentences of noise."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest
from ddpfix.patches.espnet import unused

from ddpfix.trace import reader
from tests.skipping.stacks import FAILURE
from tests.support import ranks

MODULE = "espnet2.bin.asr_train"
TOKENS = ("<blank>", "<unk>", "a", "b", "c", "<sos/eos>")


def written(folder: Path) -> None:
    """Write the data."""
    import numpy as np
    import soundfile

    draw = np.random.default_rng(0)
    for part, count in (("train", 16), ("valid", 4)):
        (folder / part).mkdir()
        waves, texts, shapes = [], [], []
        for number in range(count):
            key, samples = f"{part}{number:02}", 4000 + 200 * (number % 4)
            wave = folder / part / f"{key}.wav"
            soundfile.write(wave, (0.1 * draw.standard_normal(samples)).astype("float32"), 16000)
            waves.append(f"{key} {wave}")
            texts.append(f"{key} {'abc'[number % 3]}{'ab'[number % 2]}")
            shapes.append(f"{key} {samples}")
        for name, lines in (("wav.scp", waves), ("text", texts), ("shape", shapes)):
            (folder / part / name).write_text("\n".join(lines) + "\n")
    (folder / "tokens.txt").write_text("\n".join(TOKENS) + "\n")


def command(folder: Path, rate: str, *more: str, encoder: str = "e_branchformer") -> List[str]:
    """The words of the command line behind the name of the module."""
    words = ["--ngpu", "0", "--dist_backend", "gloo", "--multiprocessing_distributed", "false"]
    words += ["--output_dir", str(folder / "results"), "--token_type", "char", "--token_list", "tokens.txt"]
    words += ["--init", "xavier_uniform", "--cleaner", "none", "--g2p", "none", "--num_att_plot", "0"]
    for part in ("train", "valid"):
        for what in (f"{part}/wav.scp,speech,sound", f"{part}/text,text,text"):
            words += [f"--{part}_data_path_and_name_and_type", what]
        words += [f"--{part}_shape_file", f"{part}/shape"]
    words += ["--batch_type", "unsorted", "--batch_size", "4", "--max_epoch", "2", "--num_workers", "0"]
    words += ["--optim", "sgd", "--optim_conf", "lr=0.01", "--model_conf", "ctc_weight=0.3"]
    sizes = ["output_size=16", "num_blocks=6", "attention_heads=2", rate]
    sizes += ["cgmlp_linear_units=16", "cgmlp_conv_kernel=3"] if "branch" in encoder else ["linear_units=16"]
    words += ["--encoder", encoder, *(word for size in sizes for word in ("--encoder_conf", size))]
    smaller = ("num_blocks=1", "linear_units=16", "attention_heads=2")
    return [*words, "--decoder", "transformer", *(w for each in smaller for w in ("--decoder_conf", each)), *more]


ENCODERS = (("e_branchformer", "layer_drop_rate=0.5"), ("conformer", "stochastic_depth_rate=0.5"))
TRUE, FALSE = ("--unused_parameters", "true"), ("--unused_parameters", "false")


def trained(folder: Path, words: List[str], environ: Optional[Dict[str, str]] = None) -> Tuple[int, str]:
    """Train; with environment variables of ddpfix under ``ddpfix run``."""
    written(folder)
    before = [] if environ is None else ["-m", "ddpfix", "run"]
    command = [*ranks.elastic(2), *before, "-m", MODULE, *words]
    return ranks.run(command, ranks.with_release(ranks.environment(environ or {})), folder, 150)


def said(output: str, words: str) -> List[str]:
    return [line for line in output.splitlines() if "ddpfix" in line and words in line]


@pytest.mark.patches("espnet.layerdrop", "espnet.unused")
@pytest.mark.parametrize(("encoder", "rate"), ENCODERS)
def test_plain_torch_ends_with_its_error(tmp_path: Path, encoder: str, rate: str) -> None:
    code, output = trained(tmp_path, command(tmp_path, rate, encoder=encoder))
    assert code != 0 and FAILURE in output, output


@pytest.mark.patches("espnet.layerdrop", "espnet.unused")
@pytest.mark.parametrize(("encoder", "rate"), ENCODERS)
def test_it_trains_and_ranks_skip_the_same_layers(tmp_path: Path, encoder: str, rate: str) -> None:
    environ = {"DDPFIX_TRACE": str(tmp_path / "trace")}
    code, output = trained(tmp_path, command(tmp_path, rate, encoder=encoder), environ)
    assert code == 0 and "2epoch results" in output, output
    assert len(said(output, "all ranks skip the same layers of")) == 1 and not said(output, "diverged"), output
    runs = reader.read(tmp_path / "trace").runs
    skipped = [runs[rank].steps["skipped"] for rank in (0, 1)]
    assert skipped[0] == skipped[1] and len(skipped[0]) == 8 and any(skipped[0]), skipped


@pytest.mark.patches("espnet.unused")
def test_false_that_was_typed_stands(tmp_path: Path) -> None:
    code, output = trained(tmp_path, command(tmp_path, ENCODERS[0][1], *FALSE), {})
    assert code != 0 and FAILURE in output and "--unused_parameters true" in output, output


@pytest.mark.patches("espnet.unused")
@pytest.mark.parametrize(
    ("value", "words", "config", "chosen"),
    [
        (True, [], "", True),
        (False, [], "", None),
        (False, ["--ngpu", "2"], "encoder: conformer\n", None),
        (False, ["--unused_parameters", "false"], "", False),
        (False, ["--unused_parameters=false"], "", False),
        (False, [], "unused_parameters: false\n", False),
        (True, [], "unused_parameters: true\n", True),
        (False, [], "- no\n- mapping\n", None),
        (False, [], "a: [\n", None),
    ],
)
def test_what_was_chosen(value: bool, words: List[str], config: str, chosen: Any, tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(config)
    args = argparse.Namespace(unused_parameters=value, config=str(tmp_path / "train.yaml"))
    assert unused.chosen(args, words) is chosen
    if not config:
        assert unused.chosen(argparse.Namespace(unused_parameters=value, config=None), words) is chosen
