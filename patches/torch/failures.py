"""A rank that fails tells all ranks why, wherever there is a process group; :mod:`ddpfix.ranks.sentinel` has how."""

from __future__ import annotations

import atexit
import sys
import weakref
from types import ModuleType
from typing import TYPE_CHECKING, Any, List, Optional

from torch import distributed

from ddpfix.patching.site import Site
from ddpfix.ranks.store import default_store

from . import ddp

if TYPE_CHECKING:
    from ddpfix.ranks.sentinel import Sentinel

# At most one: of the default group.
_SENTINEL: List[Sentinel] = []


class Steps(ddp.Stage):
    """Counts the training forwards of each model under DDP."""

    place = "failures"

    def __init__(self) -> None:
        # Of the model whose forward was begun last.
        self.last: Optional[Counter] = None

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        model.attach(self.place, Counter(self, model).begin)

    def number(self) -> Optional[int]:
        """The training forward that was begun last; None where no model is under DDP."""
        return None if self.last is None else self.last.number


class Counter:
    """The training forwards of one model, which it outlives."""

    def __init__(self, steps: Steps, model: ddp.Wrapped) -> None:
        self._steps, self._wrapper, self.number = steps, weakref.ref(model.wrapper), 0

    def begin(self) -> None:
        """A forward of the model begins."""
        wrapper = self._wrapper()
        if wrapper is not None and wrapper.training:
            self.number += 1
            self._steps.last = self


_STEPS: List[Steps] = []


def stage(site: Site, module: ModuleType, owner: Any) -> None:
    """Put the stage in that counts steps."""
    steps = Steps()
    ddp.put(site, owner, steps)
    _STEPS[:] = [steps]
    site.at_undo(_STEPS.clear)


def group(site: Site, module: ModuleType, owner: Any) -> None:
    """Begin when the process group comes up, or at once where it is up already."""
    site.wrap(module, "init_process_group", _group_up)
    site.at_undo(_forget)
    if distributed.is_available() and distributed.is_initialized():
        _begin()


def group_end(site: Site, module: ModuleType, owner: Any) -> None:
    """A rank that leaves its process group says so, and is not taken for one that was killed."""
    site.wrap(module, "destroy_process_group", _group_down)


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
    from ddpfix.ranks import exits
    from ddpfix.ranks.sentinel import Sentinel

    _end("stopped")
    exits.watch()
    _SENTINEL.append(Sentinel(store, distributed.get_rank(), distributed.get_world_size(), step))
    _SENTINEL[0].start()
    atexit.unregister(_leave)
    atexit.register(_leave)


def step() -> Optional[int]:
    """The training forward that was begun last; None where no model is under DDP, or nothing counts them."""
    return _STEPS[0].number() if _STEPS else None


def _leave() -> None:
    for sentinel in _SENTINEL:
        sentinel.leave()


def _end(how: str) -> None:
    while _SENTINEL:
        _SENTINEL.pop().end(how)


def _forget() -> None:
    _end("stopped")
    atexit.unregister(_leave)
    exits: Any = sys.modules.get("ddpfix.ranks.exits")
    if exits is not None:
        exits.forget()
