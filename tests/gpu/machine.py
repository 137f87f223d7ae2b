"""What this machine has, asked in a process of its own so that the command itself holds no memory of a card."""

from __future__ import annotations

import importlib.util
import json
import platform
import subprocess
import sys
from importlib import metadata
from typing import Any, Dict


def probe(environ: Dict[str, str]) -> Dict[str, Any]:
    """The facts of :func:`main`, from a child."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.gpu.machine"], env=environ, capture_output=True, text=True, timeout=120
    )
    if ran.returncode:
        raise RuntimeError(f"torch cannot be asked what this machine has:\n{ran.stderr[-2000:]}")
    found: Dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def main() -> None:
    import torch

    cuda = torch.cuda.is_available()
    found: Dict[str, Any] = {"cuda": cuda, "devices": torch.cuda.device_count() if cuda else 0}
    found.update(torch=torch.__version__, cuda_version=torch.version.cuda, python=platform.python_version())
    found.update(device=platform.processor())
    for name in ("transformers", "funasr", "triton"):
        found[name] = version(name)
    found.update(nccl=None, driver=None, memory=0, nccl_there=cuda and torch.distributed.is_nccl_available())
    if cuda:
        card = torch.cuda.get_device_properties(0)
        found.update(device=card.name, memory=card.total_memory // 2**20, driver=driver())
        found.update(capability=list(torch.cuda.get_device_capability(0)), bf16=torch.cuda.is_bf16_supported())
        if found["nccl_there"]:
            found.update(nccl=".".join(map(str, torch.cuda.nccl.version())))
    print(json.dumps(found))


def version(name: str) -> Any:
    """The installed release; None where there is none."""
    if importlib.util.find_spec(name) is None:
        return None
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"


def driver() -> Any:
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.splitlines()[0].strip()
    except (OSError, IndexError, subprocess.SubprocessError):
        return None


if __name__ == "__main__":
    main()
