"""Who started this process: recognised by the variables that launchers set; their numbers are checked."""

from __future__ import annotations

import os
import socket
from typing import Any, Dict, List, Mapping, Optional

from ddpfix.cli.doctor import private
from ddpfix.cli.doctor.finding import BLOCKS, WARNING, Finding, Section

# A launcher, and variables of which it sets at least one.
LAUNCHERS = (
    ("torch elastic (torchrun)", ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")),
    ("accelerate", ("ACCELERATE_MIXED_PRECISION", "ACCELERATE_DYNAMO_BACKEND")),
    ("DeepSpeed", ("CROSS_RANK",)),
    ("Lightning", ("PL_GLOBAL_SEED",)),
    ("SLURM", ("SLURM_PROCID", "SLURM_JOB_ID")),
    ("Open MPI", ("OMPI_COMM_WORLD_RANK",)),
    ("MPICH or Intel MPI", ("PMI_RANK", "HYDI_CONTROL_FD")),
    ("Kubernetes", ("KUBERNETES_SERVICE_HOST",)),
)
# What torch's env:// needs.
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def look(ours: Mapping[str, str], environ: Optional[Mapping[str, str]] = None) -> Section:
    """Return the section.

    Args:
        ours: the variables of ddpfix, which may be shown.
        environ: the environment; this process's by default.
    """
    environ = os.environ if environ is None else environ
    findings: List[Finding] = []
    found: Dict[str, Any] = {
        "recognised": [name for name, signs in LAUNCHERS if any(sign in environ for sign in signs)],
        "variables": private.variables(environ, ours),
        "master": _master(environ, findings),
    }
    _numbers(environ, findings)
    _missing(environ, findings)
    return found, findings


def number(environ: Mapping[str, str], name: str) -> Optional[int]:
    """Return a variable that has to be a whole number from 0 on; None if it is not there, or is none."""
    word = environ.get(name, "").strip()
    return int(word) if word.isdigit() and word.isascii() else None


def _numbers(environ: Mapping[str, str], findings: List[Finding]) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"):
        if name in environ and number(environ, name) is None:
            text = f"{name} is not a whole number"
            findings.append(Finding(BLOCKS, "launcher", text, f"set {name} to a number, or start with torchrun"))
    for name, of in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        one, all_of_them = number(environ, name), number(environ, of)
        if one is not None and all_of_them is not None and one >= all_of_them:
            text = f"{name}={one} is not below {of}={all_of_them}"
            findings.append(Finding(BLOCKS, "launcher", text, f"ranks are counted from 0 to {of} - 1"))


def _missing(environ: Mapping[str, str], findings: List[Finding]) -> None:
    there = [name for name in NEEDED if environ.get(name)]
    if there and len(there) < len(NEEDED) and number(environ, "WORLD_SIZE") != 1:
        missing = ", ".join(name for name in NEEDED if name not in there)
        text = f"{', '.join(there)} is set, but not {missing}: a process group cannot be made from that"
        findings.append(Finding(WARNING, "launcher", text, "start with torchrun, or set all four"))


def _master(environ: Mapping[str, str], findings: List[Finding]) -> Optional[Dict[str, Any]]:
    """Return whether MASTER_ADDR resolves, and is this host; the name itself is not told."""
    name = environ.get("MASTER_ADDR", "").strip()
    if not name:
        return None
    found = resolve(name)
    if not found:
        text = "MASTER_ADDR does not resolve to an address on this host: no rank can join a process group"
        cure = "set it to the address of the host of rank 0, or add its name to DNS or /etc/hosts"
        findings.append(Finding(BLOCKS, "launcher", text, cure))
        return {"resolves": False, "is_this_host": None}
    here = any(map(is_local, found))
    if number(environ, "RANK") == 0 and not here and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        text = "this is rank 0, and MASTER_ADDR is another host: the store is not where the others look for it"
        findings.append(Finding(BLOCKS, "launcher", text, "set MASTER_ADDR to the address of the host of rank 0"))
    return {"resolves": True, "is_this_host": here}


def resolve(name: str) -> List[Any]:
    """Return the socket addresses of a host name, in the order of the system; none if it does not resolve."""
    try:
        return [(each[0], each[4]) for each in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):
        return []


def is_local(address: Any) -> bool:
    """Return whether a socket can be bound to an address of :func:`resolve`."""
    family, place = address
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((place[0], 0, *place[2:]))
    except OSError:
        return False
    return True
