"""Versions of Python, torch, what torch was built with, and the toolkits."""

from __future__ import annotations

import platform
import sys
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional, Tuple

from ddpfix import __version__
from ddpfix.cli.doctor import private
from ddpfix.cli.doctor.finding import BLOCKS, Problem, Section
from ddpfix.matrix import detect
from ddpfix.matrix.model import Matrix

# The libraries that a toolkit's behaviour hangs on and that the matrix does not name.
_BESIDE = ("numpy", "torchaudio", "torchvision", "lightning", "pytorch-lightning", "deepspeed", "peft", "datasets")


def torch_here() -> Tuple[Optional[ModuleType], str]:
    """torch, or None and why it cannot be imported."""
    try:
        import torch
        import torch.distributed
    except ModuleNotFoundError as error:
        # A module that torch itself needs may be what is missing.
        return None, "not installed" if error.name == "torch" else private.error(error)
    except BaseException as error:
        # A broken install raises anything: OSError for a library, AttributeError for a torch.py in the folder.
        if isinstance(error, KeyboardInterrupt):
            raise
        return None, private.error(error)
    return torch, ""


def look(whole: Matrix, torch: Optional[ModuleType], problem: str) -> Section:
    """Return the section, where torch may be missing."""
    found: Dict[str, Any] = {
        "ddpfix": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()) or None,
        "toolkits": detect.installed_versions(whole),
        "beside": {name: version for name in _BESIDE for version in [version_of(name)] if version},
        "torch": built(torch) if torch is not None else {"error": problem},
    }
    findings: List[Problem] = []
    if torch is None:
        cure = "install torch for this interpreter"
        if problem != "not installed":
            cure = "reinstall torch; if the message names a file of yours, rename that file"
        findings.append(Problem(BLOCKS, "versions", f"torch cannot be imported: {problem}", cure))
    return found, findings


def built(torch: Any) -> Dict[str, Any]:
    """Return the version of torch, and of what it was built with."""
    distributed = torch.distributed
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "cudnn": _of(lambda: torch.backends.cudnn.version() if torch.version.cuda else None),
        "nccl": _of(lambda: ".".join(map(str, torch.cuda.nccl.version())) if has(torch, "nccl") else None),
        "backends": {name: has(torch, name) for name in ("gloo", "nccl", "mpi")},
        "imported_from": private.path(getattr(torch, "__file__", None) or "(no file)"),
        "distributed": bool(distributed.is_available()),
    }


def has(torch: Any, backend: str) -> bool:
    """Return whether torch was built with a backend."""
    distributed = torch.distributed
    if not distributed.is_available():
        return False
    # Before torch 2.2 nobody tells about gloo but its class.
    ask = getattr(distributed, f"is_{backend}_available", lambda: hasattr(distributed, "ProcessGroupGloo"))
    return bool(_of(ask))


def backend(torch: Optional[Any]) -> Optional[str]:
    """Return the backend that trainers take: nccl where there are GPUs, else gloo."""
    if torch is None:
        return None
    takes_nccl = has(torch, "nccl") and bool(_of(torch.cuda.is_available))
    return "nccl" if takes_nccl else "gloo" if has(torch, "gloo") else None


def _of(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception as error:
        return private.error(error)


def version_of(distribution: str) -> Optional[str]:
    """Return the version of an installed distribution, or None."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except Exception:
        # Not there, or its metadata is broken.
        return None


def interpreter_flags() -> str:
    """Return the flags of this interpreter that keep ddpfix out."""
    flags = sys.flags
    named = [("-I", flags.isolated), ("-E", flags.ignore_environment), ("-S", flags.no_site)]
    return " ".join(name for name, is_set in named if is_set)
