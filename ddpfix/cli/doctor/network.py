"""The network interface that gloo would take, and whether ``GLOO_SOCKET_IFNAME`` names one that is here.

gloo in torch (``ProcessGroupGloo.cpp``) takes the interfaces of ``GLOO_SOCKET_IFNAME``, else that of the first address
to which this host's name resolves and which can be bound, else loopback. What NCCL takes, ``NCCL_DEBUG=INFO`` tells.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from ddpfix.cli.doctor import private
from ddpfix.cli.doctor.finding import BLOCKS, WARNING, Problem, Section

# Interfaces that are shown; a host of containers has hundreds.
_SHOWN = 24


class Interface(NamedTuple):
    """One address of an interface; ``loops``: of the loopback, which may have others as well."""

    name: str
    address: str
    loops: bool = False

    @property
    def is_loopback(self) -> bool:
        return self.loops or ipaddress.ip_address(self.address).is_loopback


def addresses() -> Iterator[Interface]:
    """Yield all addresses of this machine as psutil has them; OSError: the system refuses."""
    import psutil

    states = psutil.net_if_stats()
    for name, addresses in psutil.net_if_addrs().items():
        flags = getattr(states.get(name), "flags", "")
        for each in addresses:
            if each.family in (socket.AF_INET, socket.AF_INET6):
                # A link-local address of IPv6 has its zone behind it.
                yield Interface(name, each.address.partition("%")[0], "loopback" in flags.split(","))


def look(
    backend: Optional[str],
    environ: Optional[Mapping[str, str]] = None,
    every: Optional[Sequence[Interface]] = None,
) -> Section:
    """Return the section."""
    environ = os.environ if environ is None else environ
    findings: List[Problem] = []
    every = _here(findings) if every is None else every
    names = list(dict.fromkeys(each.name for each in every))
    found: Dict[str, Any] = {
        "backend": backend,
        "interfaces": names[:_SHOWN],
        "host_name_resolves": bool(resolve(socket.gethostname())),
        "gloo": gloo(every, environ),
    }
    _judge(found["gloo"], names, BLOCKS if backend == "gloo" else WARNING, environ, findings)
    return found, findings


def _here(findings: List[Problem]) -> List[Interface]:
    try:
        return list(addresses())
    except (OSError, AttributeError, ValueError) as error:
        text = f"the network interfaces could not be read: {private.error(error)}"
        findings.append(Problem(WARNING, "network", text, "if ranks do not connect, run ip addr"))
        return []


def gloo(every: Sequence[Interface], environ: Mapping[str, str]) -> Dict[str, Any]:
    """Return the interfaces that gloo would take, and why; None for one that is not known."""
    chosen = environ.get("GLOO_SOCKET_IFNAME", "")
    if chosen:
        names = [name for name in chosen.split(",") if name]
        return {
            "would_take": names,
            "why": "GLOO_SOCKET_IFNAME",
            "loopback": all(_is_loopback(n, every) for n in names),
        }
    usable = [address for address in resolve(socket.gethostname()) if is_local(address)]
    if usable:
        return {**_of_address(usable[0][1][0], every), "why": "the host's name resolves to its address"}
    lo = [each.name for each in every if each.is_loopback]
    why = "the host's name resolves to no address of this host"
    return {"would_take": lo[:1] or None, "why": why, "loopback": True}


def _of_address(address: str, every: Sequence[Interface]) -> Dict[str, Any]:
    text = address.partition("%")[0]
    owner = next((each for each in every if each.address == text), None)
    # All of 127.0.0.0/8 is loopback's, and only one address is told.
    loopback = text.startswith("127.") or text == "::1" or (owner is not None and owner.is_loopback)
    if owner is None and loopback:
        owner = next((each for each in every if each.is_loopback), None)
    return {"would_take": [owner.name] if owner is not None else None, "loopback": loopback}


def _is_loopback(name: str, every: Sequence[Interface]) -> bool:
    return any(each.is_loopback for each in every if each.name == name)


def _judge(
    gloo: Mapping[str, Any], names: Sequence[str], level: str, environ: Mapping[str, str], findings: List[Problem]
) -> None:
    takes = gloo["would_take"]
    if names and environ.get("GLOO_SOCKET_IFNAME") and (not takes or set(takes) - set(names)):
        text = "GLOO_SOCKET_IFNAME names no interface with an address on this machine"
        findings.append(Problem(level, "network", text, f"unset it, or choose from {', '.join(names[:_SHOWN])}"))
    size, local = _number(environ, "WORLD_SIZE"), _number(environ, "LOCAL_WORLD_SIZE")
    if gloo["loopback"] and size and local and size > local:
        text = "gloo would use the loopback interface, which other machines cannot reach"
        outside = ", ".join(name for name in names[:_SHOWN] if name != "lo") or "none here"
        cure = f"set GLOO_SOCKET_IFNAME to the interface between the machines ({outside})"
        findings.append(Problem(level, "network", text, cure))


def _number(environ: Mapping[str, str], name: str) -> Optional[int]:
    """Return a variable that has to be a whole number from 0 on; None if it is not there, or is none."""
    word = environ.get(name, "").strip()
    return int(word) if word.isdigit() and word.isascii() else None


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
