"""What one rank tells of itself: facts to compare with those of the others, and its own findings."""

from __future__ import annotations

import socket
from typing import Any, Dict, List, Mapping, NamedTuple

from ddpfix import __version__
from ddpfix.cli.doctor import choices
from ddpfix.matrix import detect, loader, resolve

# Variables that are another number on each rank.
_NAMES = """
RANK LOCAL_RANK GROUP_RANK ROLE_RANK NODE_RANK SLURM_PROCID SLURM_LOCALID SLURM_NODEID OMPI_COMM_WORLD_RANK
OMPI_COMM_WORLD_LOCAL_RANK PMI_RANK CUDA_VISIBLE_DEVICES
"""
_OWN = frozenset(_NAMES.split())
# Findings of one rank that the others are told.
_KEPT = 12
_LONGEST = 120


class Record(NamedTuple):
    """One rank.

    Attributes:
        rank: its number.
        host: the name of its machine.
        facts: what is compared, by name.
        backends: those that it could take.
        gpu: what tells its GPU from others of its machine; "" without one.
        findings: level, section, text and cure of each.
    """

    rank: int
    host: str
    facts: Dict[str, str]
    backends: List[str]
    gpu: str
    findings: List[List[str]]


def make(rank: int, report: Mapping[str, Any], environ: Mapping[str, str]) -> Record:
    """Return the record of this rank.

    Args:
        rank: its number.
        report: what the doctor knows of this process.
        environ: its environment.
    """
    findings = [[each[name][:400] for name in ("level", "about", "text", "cure")] for each in report["findings"]]
    facts = {name: str(value)[:_LONGEST] for name, value in _facts(report).items()}
    available = list(report["backend"].get("available", []))
    gpus = report["devices"].get("gpus", [])
    local = environ.get("LOCAL_RANK", "0")
    return Record(
        rank,
        socket.gethostname(),
        facts,
        [name for name in available if name != "nccl" or gpus],
        f"{environ.get('CUDA_VISIBLE_DEVICES', '')}/{local}" if gpus else "",
        findings[:_KEPT],
    )


def _facts(report: Mapping[str, Any]) -> Dict[str, Any]:
    found: Dict[str, Any] = {"DDPFIX": report["activation"].get("switch")}
    parts = report["versions"]
    torch = parts.get("torch", {})
    found.update({"ddpfix version": parts.get("ddpfix"), "Python": parts.get("python")})
    found.update({f"torch {name}": torch.get(name) for name in ("version", "cuda", "nccl")})
    found.update({f"toolkit {name}": version for name, version in parts.get("toolkits", {}).items()})
    found.update({f"{name} version": version for name, version in parts.get("beside", {}).items()})
    values = report["settings"].get("values", {})
    found.update({f"setting {name}": each["value"] for name, each in values.items()})
    switches = report["settings"].get("switches", {})
    found.update({f"switch of {name}": each["value"] for name, each in switches.items()})
    variables = report["launcher"].get("variables", {})
    found.update({n: v for n, v in variables.items() if n not in _OWN and not n.startswith("DDPFIX")})
    found.update(_machine(report))
    return found


def _machine(report: Mapping[str, Any]) -> Dict[str, Any]:
    devices, network, limits = report["devices"], report["network"], report["limits"]
    gpus = devices.get("gpus", [])
    return {
        "GPUs": f"{len(gpus)} {', '.join(dict.fromkeys(gpu['name'] for gpu in gpus))}".strip(),
        "driver": devices.get("driver"),
        "CPUs": devices.get("cpu", {}).get("count"),
        "interface of gloo": network.get("gloo", {}).get("would_take"),
        "interfaces of NCCL": network.get("nccl", {}).get("would_take"),
        "/dev/shm MiB": (limits.get("shared_memory_mib") or {}).get("total"),
        "open files": limits.get("open_files", {}).get("soft"),
    }


def agreed_facts() -> Dict[str, str]:
    """Return the facts that ranks compare before they wrap a model (:mod:`ddpfix.ranks.agreement.rendezvous`).

    Raises:
        MatrixError: the compatibility matrix cannot be read.
    """
    whole = loader.load()
    values, errors = choices.read(whole)
    toolkits = detect.installed_versions(whole)
    found = resolve.facts(__version__, ("torch",), values, resolve.resolve(whole, toolkits, values))
    return {**found, **{f"refused setting {number}": error for number, error in enumerate(errors)}}
