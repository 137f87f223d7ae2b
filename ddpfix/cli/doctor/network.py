"""The network interface that gloo would take, and whether the variables of gloo and NCCL name one that is here.

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

_FAMILIES = (socket.AF_INET, socket.AF_INET6)
# Interfaces that are shown; a host of containers has hundreds.
_SHOWN = 24


class Interface(NamedTuple):
    """One address (AF_INET or AF_INET6) of an interface; ``loops``: of the loopback, which may have others as well."""

    name: str
    family: int
    address: str
    is_up: bool = True
    loops: bool = False

    @property
    def is_loopback(self) -> bool:
        return self.loops or ipaddress.ip_address(self.address).is_loopback

    @property
    def kind(self) -> str:
        """The family and the kind of the address, which itself is nobody's business: ``IPv4 private``."""
        place = ipaddress.ip_address(self.address)
        kinds = (("loopback", place.is_loopback), ("link-local", place.is_link_local), ("private", place.is_private))
        return f"IPv{place.version} {next((name for name, holds in kinds if holds), 'public')}"


def addresses() -> Iterator[Interface]:
    """Yield all addresses of this machine as psutil has them, those of IPv4 first; OSError: the system refuses."""
    import psutil

    states = psutil.net_if_stats()
    every = psutil.net_if_addrs()
    for family in _FAMILIES:
        for name, addresses in every.items():
            state = states.get(name)
            is_up, flags = (True, "") if state is None else (state.isup, getattr(state, "flags", ""))
            for each in addresses:
                if each.family == family:
                    # A link-local address of IPv6 has its zone behind it.
                    yield Interface(name, family, each.address.partition("%")[0], is_up, "loopback" in flags.split(","))


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
        "interfaces": {name: _shown(name, every) for name in names[:_SHOWN]},
        "more_interfaces": max(0, len(names) - _SHOWN),
        "host_name_resolves": bool(resolve(socket.gethostname())),
        "gloo": gloo(every, environ),
    }
    _judge(found, names, backend, environ, findings)
    return found, findings


def _here(findings: List[Problem]) -> List[Interface]:
    try:
        return list(addresses())
    except (OSError, AttributeError, ValueError) as error:
        text = f"the network interfaces could not be read: {private.error(error)}"
        findings.append(Problem(WARNING, "network", text, "if ranks do not connect, run ip addr"))
        return []


def _shown(name: str, every: Sequence[Interface]) -> Dict[str, Any]:
    own = [each for each in every if each.name == name]
    return {"up": own[0].is_up, "addresses": list(dict.fromkeys(each.kind for each in own))}


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


def is_there(chosen: str, names: Sequence[str]) -> bool:
    """Return whether NCCL_SOCKET_IFNAME selects one: beginnings of names; ``^`` excludes, ``=`` wants all of it."""
    exclude = chosen.startswith("^")
    whole = chosen[exclude:].startswith("=")
    # An entry may have a port behind a colon, which is no part of the name.
    parts = [part.partition(":")[0] for part in chosen[exclude + whole :].split(",") if part]
    matches = [any(name == part if whole else name.startswith(part) for part in parts) for name in names]
    return not all(matches) if exclude else any(matches)


def _judge(
    found: Mapping[str, Any],
    names: Sequence[str],
    backend: Optional[str],
    environ: Mapping[str, str],
    findings: List[Problem],
) -> None:
    here = ", ".join(names[:_SHOWN])
    takes = found["gloo"]["would_take"]
    chosen = {name: environ.get(name, "") for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}
    wrong = {
        "gloo": bool(chosen["GLOO_SOCKET_IFNAME"]) and bool(not takes or set(takes) - set(names)),
        # A single letter is no choice for NCCL.
        "nccl": len(chosen["NCCL_SOCKET_IFNAME"]) > 1 and not is_there(chosen["NCCL_SOCKET_IFNAME"], names),
    }
    for library, variable in zip(wrong, chosen):
        if names and wrong[library]:
            level = BLOCKS if backend == library else WARNING
            text = f"{variable} names no interface with an address on this machine"
            findings.append(Problem(level, "network", text, f"unset it, or choose from {here}"))
    size, local = _number(environ, "WORLD_SIZE"), _number(environ, "LOCAL_WORLD_SIZE")
    if found["gloo"]["loopback"] and size and local and size > local:
        text = "gloo would use the loopback interface, which other machines cannot reach"
        outside = ", ".join(name for name in names[:_SHOWN] if name != "lo") or "none here"
        cure = f"set GLOO_SOCKET_IFNAME to the interface between the machines ({outside})"
        findings.append(Problem(BLOCKS if backend == "gloo" else WARNING, "network", text, cure))


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
