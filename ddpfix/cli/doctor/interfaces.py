"""The network interfaces of this machine with their addresses, as psutil has them: those of IPv4 come first."""

from __future__ import annotations

import ipaddress
import socket
from typing import Iterator, List, NamedTuple

_FAMILIES = (socket.AF_INET, socket.AF_INET6)


class Interface(NamedTuple):
    """One address of an interface.

    Attributes:
        family: ``socket.AF_INET`` or ``AF_INET6``.
        loops: whether it is the loopback, which may have other addresses as well.
    """

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


def here() -> List[Interface]:
    """Return all addresses.

    Raises:
        OSError: the system refuses.
    """
    return list(_all())


def _all() -> Iterator[Interface]:
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
