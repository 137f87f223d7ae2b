"""Runs ``wenet/bin/train.py`` of a real tree as it is, on a machine without a GPU: ``on_cpu.py SCRIPT ...``.

Supplied is what the environment lacks: a reader of sound (torchaudio's needs a library of its own), and, for 3.0.0 to
3.1.0, which know no CPU, the CPU in the place of the GPU. Nothing of WeNet or of DDP is replaced.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional, Tuple, Union

import torch


def load(file: Any, **_: Any) -> Tuple[torch.Tensor, int]:
    """As ``torchaudio.load``."""
    import soundfile

    wave, rate = soundfile.read(file, dtype="float32", always_2d=True)
    return torch.from_numpy(wave.T.copy()), int(rate)


def supply_names() -> None:
    """What newer torch and torchaudio have lost, for runs without ddpfix, which supplies it as well."""
    import torch.nn.modules.conv
    import torchaudio.utils

    for name, value in (("Union", Union), ("Optional", Optional)):
        vars(torch.nn.modules.conv).setdefault(name, value)
    vars(torchaudio.utils).setdefault("sox_utils", SimpleNamespace(set_buffer_size=lambda size: None))


def supply_audio() -> None:
    """Have sound read by soundfile."""
    import torchaudio

    vars(torchaudio)["load"] = load
    vars(torchaudio).setdefault("set_audio_backend", lambda name: None)


def supply_gpu() -> None:
    """Have tensors stay on the CPU where a release sends them to the GPU of the rank."""
    from wenet.utils import train_utils

    to, wrap = torch.Tensor.to, train_utils.wrap_cuda_model

    def stays(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        gpu = bool(args) and (type(args[0]) is int or str(args[0]).startswith("cuda"))
        return to(self, *args[1:], **kwargs) if gpu else to(self, *args, **kwargs)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        there = torch.cuda.is_available
        torch.cuda.is_available = lambda: True
        try:
            return wrap(*args, **kwargs)
        finally:
            torch.cuda.is_available = there

    torch.Tensor.to = stays  # type: ignore[assignment,method-assign]
    torch.nn.Module.cuda = lambda self, device=None: self  # type: ignore[assignment,method-assign,misc,return-value]
    torch.cuda.set_device = lambda device: None
    train_utils.wrap_cuda_model = wrapped


def main() -> None:
    script = Path(sys.argv[1])
    sys.argv = sys.argv[1:]
    supply_names()
    supply_audio()
    text = script.with_name("train.py").read_text()
    if "wrap_cuda_model" in text and "'--device'" not in text:
        supply_gpu()
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
