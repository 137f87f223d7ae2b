"""A job that hangs says which rank is late, wherever there is a process group; :mod:`ddpfix.ranks.hang` has how."""

from __future__ import annotations

import atexit
from types import ModuleType
from typing import TYPE_CHECKING, Any, List

from torch import distributed

from ddpfix.patching.site import Site
from ddpfix.ranks.store import default_store

from . import failures

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
    site.wrap(module, "init_process_group", _group_up)
    site.at_undo(_forget)
    if distributed.is_available() and distributed.is_initialized():
        _begin()


def group_end(site: Site, module: ModuleType, owner: Any) -> None:
    """A rank that leaves its process group says so."""
    if site.settings["hang"] != "off":
        site.wrap(module, "destroy_process_group", _group_down)


def _seconds(site: Site) -> Any:
    after = site.settings["hang_exit"]
    return float(site.settings["hang"]), None if after == "off" else float(after)


def _folder(site: Site) -> str:
    """The user's own folder for what ddpfix writes, if there is such a setting."""
    found = site.settings.values.get("trace", "off")
    return "" if found == "off" else str(found)


def _group_up(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    _begin()
    return result


def _group_down(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    given = kwargs.get("group", args[0] if args else None)
    if given is None or given is getattr(distributed.group, "WORLD", None):
        _end("left")
    return wrapped(*args, **kwargs)


def _begin() -> None:
    store = default_store()
    if store is None or distributed.get_world_size() == 1:
        return
    # Not at the head of this file: a process without a group needs none of it.
    from ddpfix.ranks.hang.watch import Limits, Watch

    _end("stopped")
    seconds, folder = _GIVEN
    rank, size = distributed.get_rank(), distributed.get_world_size()
    _WATCH.append(Watch(store, rank, size, failures.step, Limits(*seconds), folder))
    _WATCH[0].start()
    atexit.unregister(_leave)
    atexit.register(_leave)


def _leave() -> None:
    _end("left")


def _end(how: str) -> None:
    while _WATCH:
        _WATCH.pop().end(how)


def _forget() -> None:
    _end("stopped")
    atexit.unregister(_leave)
    _GIVEN.clear()
