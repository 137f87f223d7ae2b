"""A small recipe of WeNet: noise for speech, a list, symbols, a yaml, the command line of ``wenet/bin/train.py``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Dict, List

from tests.wenet import trees

RATE = 16000
SYMBOLS = ["<blank>", "<unk>", *"abcdefgh", "<sos/eos>"]
_LAYER = {"attention_heads": 2, "linear_units": 16, "dropout_rate": 0.0, "positional_dropout_rate": 0.0}
_ENCODERS: Dict[str, Dict[str, Any]] = {
    "conformer": {**_LAYER, "attention_dropout_rate": 0.0, "cnn_module_kernel": 3, "use_cnn_module": True},
    "branchformer": {
        "attention_heads": 2,
        "cgmlp_linear_units": 8,
        "cgmlp_conv_kernel": 3,
        "dropout_rate": 0.0,
        "positional_dropout_rate": 0.0,
        "attention_dropout_rate": 0.0,
    },
}


def config(folder: Path, encoder: str = "conformer", **changes: Any) -> Dict[str, Any]:
    """The yaml; ``changes`` are merged into its parts."""
    whole: Dict[str, Any] = {
        "encoder": encoder,
        "encoder_conf": {"output_size": 16, "num_blocks": 2, **_ENCODERS[encoder]},
        "decoder": "transformer",
        "decoder_conf": {**_LAYER, "num_blocks": 1},
        "ctc_conf": {"ctc_blank_id": 0},
        "tokenizer": "char",
        "tokenizer_conf": {"symbol_table_path": str(folder / "symbols.txt"), "non_lang_syms_path": None},
        "model": "asr_model",
        "model_conf": {"ctc_weight": 0.3, "lsm_weight": 0.1, "length_normalized_loss": False},
        "dataset": "asr",
        "dataset_conf": {
            "filter_conf": {"max_length": 4000, "min_length": 1},
            "fbank_conf": {"num_mel_bins": 20, "frame_shift": 10, "frame_length": 25, "dither": 0.0},
            "spec_aug": False,
            "shuffle": False,
            "sort": False,
            "batch_conf": {"batch_type": "static", "batch_size": 2},
        },
        "grad_clip": 5,
        "accum_grad": 1,
        "max_epoch": 1,
        "log_interval": 1,
        "optim": "adam",
        "optim_conf": {"lr": 0.001},
        "scheduler": "warmuplr",
        "scheduler_conf": {"warmup_steps": 4},
    }
    for name, value in changes.items():
        whole[name] = {**whole[name], **value} if isinstance(value, dict) else value
    return whole


def write(folder: Path, count: int = 12, **changes: Any) -> None:
    """Speech, list, symbols and yaml of a job.

    Args:
        folder: where to.
        count: utterances; two make a batch.
        changes: to the yaml, see :func:`config`.
    """
    import numpy
    import soundfile
    import yaml

    random = numpy.random.default_rng(5)
    lines = []
    for number in range(count):
        file = folder / f"{number:02}.wav"
        soundfile.write(file, random.normal(0, 0.1, RATE + 800 * number).astype("float32"), RATE, subtype="PCM_16")
        text = "".join("abcdefgh"[int(letter)] for letter in random.integers(0, 8, 4))
        lines.append(json.dumps({"key": file.stem, "wav": str(file), "txt": text}))
    (folder / "data.list").write_text("\n".join(lines) + "\n")
    (folder / "symbols.txt").write_text("".join(f"{word} {number}\n" for number, word in enumerate(SYMBOLS)))
    (folder / "train.yaml").write_text(yaml.safe_dump(config(folder, **changes)))
    (folder / "model").mkdir(exist_ok=True)


def command(tree: Path, folder: Path, *more: str) -> List[str]:
    """The script and its arguments, behind an interpreter."""
    data = ["--train_data", str(folder / "data.list"), "--cv_data", str(folder / "data.list"), "--num_workers", "1"]
    words = ["--config", str(folder / "train.yaml"), "--model_dir", str(folder / "model"), "--data_type", "raw", *data]
    if trees.version(tree) < "3":
        words += ["--symbol_table", str(folder / "symbols.txt"), "--gpu", "-1"]
    else:
        words += ["--ddp.dist_backend", "gloo"]
    if trees.version(tree) >= "3.2":
        words += ["--device", "cpu"]
    words += ["--tensorboard_dir", str(folder / "tensorboard")]
    script = tree / "wenet" / "bin" / "train.py"
    return [str(Path(__file__).with_name("on_cpu.py")), str(script), *words, *more]


def environ(tree: Path, **more: str) -> Dict[str, str]:
    """Of a rank."""
    found = trees.environ(tree, OMP_NUM_THREADS="1", **more)
    # Where the test's own interpreter finds what is beside it.
    found["PYTHONPATH"] = os.pathsep.join([found["PYTHONPATH"], *filter(None, sys.path[:1])])
    return found
