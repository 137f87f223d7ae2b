"""What a training runs out of: shared memory, open files, disk; and how long it waits for others."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ddpfix.cli.doctor import private
from ddpfix.cli.doctor.finding import BLOCKS, WARNING, Finding, Section

MIB = 1 << 20
# MiB of shared memory with which loader workers come to an end soon; Docker gives 64.
_LITTLE_SHM = 512
# Open files with which loader workers come to an end soon: each tensor that they hand over is one.
_FEW_FILES = 4096
# MiB of disk with which a checkpoint cannot be written.
_LITTLE_DISK = 1024


class Room(NamedTuple):
    """The size of a file system and what is free of it, in MiB."""

    total: int
    free: int


def look(
    torch: Optional[Any], shm: Path = Path("/dev/shm"), files: Optional[Tuple[int, int]] = None, folder: str = "."
) -> Section:
    """Return the section.

    Args:
        torch: the module, or None where it cannot be imported.
        shm: where shared memory is.
        files: soft and hard limit of open files; this process's by default.
        folder: the working directory.
    """
    findings: List[Finding] = []
    strategy = torch.multiprocessing.get_sharing_strategy() if torch is not None else None
    soft, hard = open_files() if files is None else files
    found = {
        "shared_memory_mib": _shm(room(shm), findings),
        "open_files": {"soft": soft, "hard": hard},
        "sharing_strategy": strategy,
        "disk_mib": {name: _disk(name, place, findings) for name, place in places(folder)},
    }
    if soft is not None and 0 <= soft < _FEW_FILES and strategy in (None, "file_descriptor"):
        text = f"a process may open {soft} files: loader workers end with 'Too many open files' or 'received 0 items'"
        cure = "ulimit -n 65536 before the start (docker run --ulimit nofile=65536:65536)"
        findings.append(Finding(WARNING, "limits", text, cure))
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


def _shm(found: Optional[Room], findings: List[Finding]) -> Optional[Dict[str, int]]:
    if found is None:
        return None
    if found.total < _LITTLE_SHM:
        text = (
            f"/dev/shm has {found.total} MiB: loader workers hand batches over in it, and die by SIGBUS when it is full"
        )
        cure = "docker run --shm-size=16g (or --ipc=host; in Kubernetes an emptyDir of medium Memory at /dev/shm)"
        findings.append(Finding(WARNING, "limits", text, cure))
    elif found.free < _LITTLE_SHM:
        text = f"/dev/shm has {found.free} MiB left of {found.total}: another job, or a killed one, has filled it"
        findings.append(
            Finding(WARNING, "limits", text, "ls -l /dev/shm; files that no process has open can be deleted")
        )
    return found._asdict()


def places(folder: str) -> List[Tuple[str, str]]:
    """Return the working directory and that of temporary files."""
    try:
        temporary = tempfile.gettempdir()
    except OSError:
        # Python has found no folder in which it may write.
        temporary = ""
    return [("working_directory", folder), ("temporary_files", temporary)]


def _disk(name: str, place: str, findings: List[Finding]) -> Optional[Dict[str, Any]]:
    found = room(Path(place)) if place else None
    words = name.replace("_", " ")
    if found is None:
        cure = (
            "set TMPDIR to a folder that can be written"
            if name == "temporary_files"
            else "change to a folder that is there"
        )
        findings.append(Finding(BLOCKS, "limits", f"there is no {words} that can be used", cure))
        return None
    if found.free < _LITTLE_DISK:
        text = f"{found.free} MiB are free where {words} are kept: a checkpoint needs more"
        findings.append(Finding(WARNING, "limits", text.replace("directory are", "directory is"), "make room"))
    return {**found._asdict(), "writable": os.access(place, os.W_OK)}


def clock() -> Dict[str, Any]:
    """Return the time of this machine, and its time zone."""
    now = time.time()
    return {
        "utc": datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="milliseconds"),
        "zone": time.strftime("%Z"),
    }


def timeouts(torch: Optional[Any], patience: float) -> Dict[str, Optional[float]]:
    """Return how long collectives wait for a rank where the program does not say it, in seconds.

    Args:
        torch: the module, or None where it cannot be imported.
        patience: how long ddpfix waits for a rank without it.
    """
    found: Dict[str, Optional[float]] = {"ddpfix": patience, "gloo": None, "nccl": None}
    if torch is not None:
        try:
            from torch.distributed import distributed_c10d

            default = distributed_c10d.default_pg_timeout.total_seconds()
            special = getattr(distributed_c10d, "default_pg_nccl_timeout", None)
            found.update(gloo=default, nccl=default if special is None else special.total_seconds())
        except Exception as error:
            found.update(error=private.error(error))  # type: ignore[call-overload]
    return found
