"""GPUs, CPUs and memory, with what a container leaves of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from ddpfix.cli.doctor import launcher, private, versions
from ddpfix.cli.doctor.finding import BLOCKS, WARNING, Finding, Section

MIB = 1 << 20
# GPUs whose pairs are looked at.
_PAIRS = 16


def look(torch: Optional[Any], environ: Optional[Mapping[str, str]] = None, root: Path = Path("/")) -> Section:
    """Return the section.

    Args:
        torch: the module, or None where it cannot be imported.
        environ: the environment; this process's by default.
        root: where ``proc`` and ``sys`` are.
    """
    environ = os.environ if environ is None else environ
    findings: List[Finding] = []
    found: Dict[str, Any] = {
        "gpus": [],
        "peer_access": None,
        "driver": _driver(root),
        "cpu": cpus(root),
        "memory_mib": memory(root),
    }
    if torch is not None:
        found.update(_gpus(torch, findings))
    _judge(found, environ, root, findings)
    return found, findings


def backend(torch: Optional[Any], found: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the backend that trainers take: nccl where there are GPUs, else gloo."""
    if torch is None:
        return {"would_take": None, "available": []}
    available = [name for name in ("nccl", "gloo", "mpi") if versions.has(torch, name)]
    takes = "nccl" if found["gpus"] and "nccl" in available else "gloo" if "gloo" in available else None
    return {"would_take": takes, "available": available}


def _gpus(torch: Any, findings: List[Finding]) -> Dict[str, Any]:
    try:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        gpus = [_gpu(torch, number) for number in range(count)]
    except Exception as error:
        text = f"torch cannot use the GPUs: {private.error(error)}"
        findings.append(Finding(BLOCKS, "devices", text, "check the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES"))
        return {}
    return {"gpus": gpus, "peer_access": _peers(torch, count)}


def _gpu(torch: Any, number: int) -> Dict[str, Any]:
    properties = torch.cuda.get_device_properties(number)
    return {
        "name": str(properties.name),
        "memory_mib": int(properties.total_memory) // MIB,
        "capability": f"{properties.major}.{properties.minor}",
    }


def _peers(torch: Any, count: int) -> Optional[List[str]]:
    """Return one line a GPU: 1 for each other one whose memory it can reach, - for itself; None for a single one."""
    if not 1 < count <= _PAIRS:
        return None

    def reaches(one: int, other: int) -> str:
        if one == other:
            return "-"
        try:
            return "1" if torch.cuda.can_device_access_peer(one, other) else "0"
        except Exception:
            return "?"

    return ["".join(reaches(one, other) for other in range(count)) for one in range(count)]


def _driver(root: Path) -> Optional[str]:
    words = _read(root / "proc/driver/nvidia/version").split()
    return next((word for word in words if word[:1].isdigit() and word.count(".") in (1, 2)), None)


def cpus(root: Path = Path("/")) -> Dict[str, Any]:
    """Return how many there are, how many this process may use, and the limit of its control group in CPUs."""
    try:
        mine: Optional[int] = len(os.sched_getaffinity(0))
    except AttributeError:
        # Not Linux.
        mine = None
    return {"count": os.cpu_count(), "may_use": mine, "cgroup_limit": _cpu_limit(root)}


def memory(root: Path = Path("/")) -> Dict[str, Optional[int]]:
    """Return the memory of the machine and the limit of this process's control group, in MiB."""
    lines = [line.split() for line in _read(root / "proc/meminfo").splitlines()]
    kib = {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}
    limits = [_number(text) for text in _of_group(root, "memory", ("memory.max", "memory.limit_in_bytes"))]
    total = kib.get("MemTotal")
    # Without a limit, version 1 tells a number near 2**63.
    real = [limit for limit in limits if limit is not None and limit < 1 << 60]
    return {
        "total": total // 1024 if total is not None else None,
        "available": kib["MemAvailable"] // 1024 if "MemAvailable" in kib else None,
        "cgroup_limit": min(real) // MIB if real else None,
    }


def _cpu_limit(root: Path) -> Optional[float]:
    found = []
    for text in _of_group(root, "cpu", ("cpu.max",)):
        quota, _, period = text.strip().partition(" ")
        if quota.isdigit() and period.isdigit():
            found.append(int(quota) / int(period))
    quotas = _of_group(root, "cpu", ("cpu.cfs_quota_us",))
    periods = _of_group(root, "cpu", ("cpu.cfs_period_us",))
    for text, period in zip(quotas, periods):
        if text.strip().isdigit() and period.strip().isdigit():
            found.append(int(text) / int(period))
    return min(found) if found else None


def _of_group(root: Path, controller: str, names: Any) -> List[str]:
    """Return the contents of files of the control groups that this process is in, from its own up to the outermost."""
    texts = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, place = (line.split(":", 2) + ["", ""])[:3]
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controllers and controller)
        folder = top / place.lstrip("/")
        # In a container the path may be that of the machine, which is not there: only the outermost is.
        for group in (folder, *folder.parents):
            texts += [text for text in (_read(group / name) for name in names) if text]
            if group == top:
                break
    return texts


def _number(text: str) -> Optional[int]:
    return int(text) if text.strip().isdigit() else None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _judge(found: Mapping[str, Any], environ: Mapping[str, str], root: Path, findings: List[Finding]) -> None:
    gpus = len(found["gpus"])
    if found["driver"] and not gpus and environ.get("CUDA_VISIBLE_DEVICES", "0").strip() not in ("", "-1"):
        text = "this machine has an NVIDIA driver, and torch sees no GPU: a training would run on the CPU"
        cure = "install a torch that was built with CUDA for this driver (versions), or check the container's --gpus"
        findings.append(Finding(WARNING, "devices", text, cure))
    local, size = launcher.number(environ, "LOCAL_RANK"), launcher.number(environ, "LOCAL_WORLD_SIZE")
    if gpus and ((size or 0) > gpus or (local or 0) >= gpus):
        text = f"{size or (local or 0) + 1} ranks on this machine, and {gpus} GPUs that torch sees"
        cure = "start at most one rank a GPU (--nproc_per_node), or check CUDA_VISIBLE_DEVICES"
        findings.append(Finding(BLOCKS, "devices", text, cure))
    limit = found["cpu"]["cgroup_limit"] or found["cpu"]["may_use"]
    if limit and size and size > limit:
        text = f"{size} ranks on this machine share {limit:g} CPUs: each waits for the others"
        findings.append(
            Finding(WARNING, "devices", text, "give the container more CPUs (--cpus), or start fewer ranks")
        )
