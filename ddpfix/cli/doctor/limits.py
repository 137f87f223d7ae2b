"""What loader workers run out of: shared memory and open files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ddpfix.cli.doctor.finding import WARNING, Problem, Section

MIB = 1 << 20
# MiB of shared memory with which loader workers come to an end soon; Docker gives 64.
_LITTLE_SHM = 512
# Open files with which loader workers come to an end soon: each tensor that they hand over is one.
_FEW_FILES = 4096


class Room(NamedTuple):
    """The size of a file system and what is free of it, in MiB."""

    total: int
    free: int


def look(torch: Optional[Any], shm: Path = Path("/dev/shm"), files: Optional[Tuple[int, int]] = None) -> Section:
    """Return the section; ``files`` are the soft and the hard limit of open files, this process's by default."""
    findings: List[Problem] = []
    strategy = torch.multiprocessing.get_sharing_strategy() if torch is not None else None
    soft, hard = open_files() if files is None else files
    found = {
        "shared_memory_mib": _shm(room(shm), findings),
        "open_files": {"soft": soft, "hard": hard},
        "sharing_strategy": strategy,
    }
    if soft is not None and 0 <= soft < _FEW_FILES and strategy in (None, "file_descriptor"):
        text = f"a process may open only {soft} files: loaders fail with 'Too many open files' or 'received 0 items'"
        cure = "ulimit -n 65536 before the start (docker run --ulimit nofile=65536:65536)"
        findings.append(Problem(WARNING, "limits", text, cure))
    return found, findings


def open_files() -> Tuple[Optional[int], Optional[int]]:
    """Return the soft and the hard limit; -1 is none, None where this system has no such thing."""
    try:
        import resource
    except ImportError:
        return None, None
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def room(place: Path) -> Optional[Room]:
    """Return how much room there is; None if the place is not there."""
    try:
        usage = shutil.disk_usage(place)
    except OSError:
        return None
    return Room(usage.total // MIB, usage.free // MIB)


def _shm(found: Optional[Room], findings: List[Problem]) -> Optional[Dict[str, int]]:
    if found is None:
        return None
    if found.total < _LITTLE_SHM:
        text = (
            f"/dev/shm has {found.total} MiB: loader workers hand batches over in it, and die by SIGBUS when it is full"
        )
        cure = "docker run --shm-size=16g (or --ipc=host; in Kubernetes an emptyDir of medium Memory at /dev/shm)"
        findings.append(Problem(WARNING, "limits", text, cure))
    elif found.free < _LITTLE_SHM:
        text = (
            f"/dev/shm has only {found.free} of {found.total} MiB left: another job, or one that was killed, filled it"
        )
        findings.append(
            Problem(WARNING, "limits", text, "ls -l /dev/shm; files that no process has open can be deleted")
        )
    return found._asdict()
