"""The network interfaces of this machine with their addresses, in the order in which C libraries see them."""

from __future__ import annotations

import ctypes
import ipaddress
import socket
import sys
from typing import Any, Iterator, List, NamedTuple, Optional, Tuple

_UP, _LOOPBACK, _RUNNING = 0x1, 0x8, 0x40


class Interface(NamedTuple):
    """One address of an interface.

    Attributes:
        name: of the interface.
        family: ``socket.AF_INET`` or ``AF_INET6``.
        address: in text.
        flags: of the interface, as ``getifaddrs`` has them.
    """

    name: str
    family: int
    address: str
    flags: int = _UP | _RUNNING

    @property
    def is_up(self) -> bool:
        return bool(self.flags & _UP and self.flags & _RUNNING)

    @property
    def is_loopback(self) -> bool:
        return bool(self.flags & _LOOPBACK) or ipaddress.ip_address(self.address).is_loopback

    @property
    def kind(self) -> str:
        """The family and the kind of the address, which itself is nobody's business: ``IPv4 private``."""
        place = ipaddress.ip_address(self.address)
        kinds = (("loopback", place.is_loopback), ("link-local", place.is_link_local), ("private", place.is_private))
        return f"IPv{place.version} {next((name for name, holds in kinds if holds), 'public')}"


class _Entry(ctypes.Structure):
    pass


_Entry._fields_ = [
    ("next", ctypes.POINTER(_Entry)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
    ("destination", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
]


def here() -> List[Interface]:
    """Return all addresses; none where this system does not tell them in the way of Linux.

    Raises:
        OSError: the system refuses.
    """
    return list(_walk()) if sys.platform.startswith("linux") else []


def _walk() -> Iterator[Interface]:
    library = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_Entry)()
    if library.getifaddrs(ctypes.byref(first)):
        raise OSError(ctypes.get_errno(), "getifaddrs")
    try:
        each: Any = first
        while each:
            entry = each.contents
            found = _address(entry.address)
            if found is not None:
                yield Interface(entry.name.decode(errors="replace"), *found, entry.flags)
            each = entry.next
    finally:
        library.freeifaddrs(first)


def _address(place: Optional[int]) -> Optional[Tuple[int, str]]:
    if not place:
        return None
    family = ctypes.c_ushort.from_address(place).value
    # Port, then the address of IPv4; of IPv6 the flow comes between.
    places = {int(socket.AF_INET): (4, 4), int(socket.AF_INET6): (8, 16)}
    if family not in places:
        return None
    start, length = places[family]
    return family, socket.inet_ntop(family, ctypes.string_at(place + start, length))
