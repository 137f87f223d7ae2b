"""A job that hangs says which rank is late, wherever there is a process group; :mod:`ddpfix.ranks.hang` has how."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, List

from ddpfix.patching.site import Site

from . import failures
from .world import World

if TYPE_CHECKING:
    from ddpfix.ranks.hang.watch import Watch

# At most one: of the default group.
_WATCH: List[Watch] = []
# The limits, and the folder for stacks.
_GIVEN: List[Any] = []


def group(site: Site, module: ModuleType, owner: Any) -> None:
    """Watch from when the process group comes up, or at once where it is up already."""
    if site.settings["hang"] == "off":
        return
    _GIVEN[:] = [_seconds(site), _folder(site)]
    site.at_undo(_GIVEN.clear)
    _WORLD.follow(site, module)


def group_end(site: Site, module: ModuleType, owner: Any) -> None:
    """A rank that leaves its process group says so."""
    if site.settings["hang"] != "off":
        _WORLD.follow_end(site, module)


def _seconds(site: Site) -> Any:
    after = site.settings["hang_exit"]
    return float(site.settings["hang"]), None if after == "off" else float(after)


def _folder(site: Site) -> str:
    """The user's own folder for what ddpfix writes, if there is such a setting."""
    found = site.settings.values.get("trace", "off")
    return "" if found == "off" else str(found)


def _make(store: Any, rank: int, size: int) -> None:
    # Not at the head of this file: a process without a group needs none of it.
    from ddpfix.ranks.hang.watch import Limits, Watch

    seconds, folder = _GIVEN
    _WATCH.append(Watch(store, rank, size, failures.step, Limits(*seconds), folder, failures.micro))
    _WATCH[0].start()


def _leave() -> None:
    _end("left")


def _end(how: str) -> None:
    while _WATCH:
        _WATCH.pop().end(how)


_WORLD = World(_make, _end, _leave)
