"""A tiny task of ESPnet: sixteen sentences of noise, and the command line that trains on them."""

from __future__ import annotations

from pathlib import Path
from typing import List

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
