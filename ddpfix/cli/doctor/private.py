"""What may be shown: no home folder, no user's name, no value of a variable that is not known to be harmless."""

from __future__ import annotations

import getpass
import os
import re
from pathlib import Path
from typing import Dict, Mapping, Optional

# Words in the name of a variable whose value is never shown, whatever else is said about it.
_SECRET = re.compile(r"TOKEN|SECRET|PASS|CREDENTIAL|AUTH|PRIVATE|COOKIE|(?:^|_)KEY|KEY(?:$|_)", re.IGNORECASE)
# What numbers, switches, names of interfaces and lists of these are written with.
_PLAIN = re.compile(r"[\w.,:=^*+\- ]{1,160}\Z")
# Variables of launchers and libraries that hold numbers, switches, or names of interfaces.
_NAMES = """
RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE NODE_RANK
MASTER_PORT TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_USE_AGENT_STORE
SLURM_PROCID SLURM_NTASKS SLURM_LOCALID SLURM_NNODES SLURM_NODEID SLURM_NTASKS_PER_NODE SLURM_CPUS_PER_TASK
OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK PMI_RANK PMI_SIZE
ACCELERATE_MIXED_PRECISION ACCELERATE_USE_DEEPSPEED ACCELERATE_USE_FSDP ACCELERATE_DYNAMO_BACKEND
GLOO_SOCKET_IFNAME TP_SOCKET_IFNAME TORCH_DISTRIBUTED_DEBUG TORCH_CPP_LOG_LEVEL TORCH_SHOW_CPP_STACKTRACES
OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS KMP_AFFINITY TOKENIZERS_PARALLELISM
CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING CUDA_DEVICE_MAX_CONNECTIONS CUDA_MODULE_LOADING
HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES ASCEND_RT_VISIBLE_DEVICES
CUBLAS_WORKSPACE_CONFIG PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF PYTORCH_NO_CUDA_MEMORY_CACHING
PYTHONHASHSEED PYTHONNOUSERSITE DDPFIX
"""
_HARMLESS = frozenset(_NAMES.split())
_HARMLESS_BEGINNINGS = ("NCCL_", "TORCH_NCCL_", "TORCH_GLOO_")
# Addresses and ids of machines, and files.
_NEVER = frozenset({"NCCL_COMM_ID", "NCCL_HOSTID"})


def variables(environ: Mapping[str, str], ours: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables that may be shown, with their values; a value that looks like none of its kind is ``(set)``.

    Args:
        environ: the environment.
        ours: the known variables of ddpfix.
    """
    shown = {name: environ[name] for name in sorted(environ) if name in ours or _is_harmless(name)}
    return {name: text(value) if _PLAIN.match(value) else "(set)" for name, value in shown.items()}


def _is_harmless(name: str) -> bool:
    if name in _NEVER or _SECRET.search(name):
        return False
    return name in _HARMLESS or name.startswith(_HARMLESS_BEGINNINGS)


def text(words: str, home: Optional[str] = None, user: Optional[str] = None) -> str:
    """Words in which the home folder is ``~``, and the user's name as a part of a path is ``USER``.

    Args:
        words: a path, or a message with paths.
        home: the home folder; this process's by default.
        user: the name; this process's by default. root is everybody's.
    """
    home = _home() if home is None else home
    if len(home) > 1:
        words = re.sub(re.escape(home.rstrip("/")) + r"(?![\w.-])", "~", words)
    user = _user() if user is None else user
    if user and user != "root":
        words = re.sub(rf"(?<=[/\\]){re.escape(user)}(?![\w.-])", "USER", words)
    return words


def path(place: object) -> str:
    """Return a path as :func:`text` has it."""
    return text(os.fspath(place) if isinstance(place, (str, os.PathLike)) else str(place))


def error(caught: BaseException) -> str:
    """Return an error in one short line."""
    lines = str(caught).strip().splitlines() or [""]
    return text(f"{type(caught).__name__}: {lines[0]}"[:300].rstrip(": "))


def _home() -> str:
    try:
        return str(Path.home())
    except (RuntimeError, OSError, KeyError):
        # A user without an entry and without HOME, as in many containers.
        return ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""
