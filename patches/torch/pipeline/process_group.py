"""The one wrapper of ``init_process_group`` and ``destroy_process_group``.

Followers learn of the process group of all ranks in the order of :data:`.order.GROUP`, and of its end in the opposite
one; so they do of the end of a process whose group is still up, by one handler of atexit.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
from types import ModuleType
from typing import Any, Callable, ContextManager, Dict, Tuple

from torch import distributed

from ddpfix import log
from ddpfix.exchange import lowest_rank
from ddpfix.patching.site import Site

from .order import GROUP, Shared


class Follower:
    """Follows the process group of all ranks. ``place`` is its name in :data:`.order.GROUP`."""

    place: str

    def coming_up(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> ContextManager[None]:
        """Called with the arguments of ``init_process_group``; returns what is open while it runs."""
        return contextlib.nullcontext()

    def up(self) -> None:
        """Called when the group is up, or at once where it was up before the patch."""

    def leaving(self) -> None:
        """Called before this rank leaves the group of all ranks."""

    def exits(self) -> None:
        """Called where the program ends with its group up."""

    def undone(self) -> None:
        """Called when the patch is undone."""


class ProcessGroup:
    """The process group of all ranks in one activation.

    Its handler of atexit is registered when the group is up: functions of the program that were registered before run
    after it. Then multiprocessing's own, registered earlier, closes a trace; what it has started runs no other.
    """

    def __init__(self) -> None:
        self._shared: Shared[Follower] = Shared("torch.process_group", GROUP)

    def follow(self, site: Site, module: ModuleType, follower: Follower) -> None:
        """Have a follower, whose place no other has taken, called until the patch is undone."""
        self._shared.join(site, follower.place, follower, functools.partial(self._put_on, module))
        site.at_undo(follower.undone)
        if distributed.is_available() and distributed.is_initialized():
            self._expect_exit()
            _guarded(follower, follower.up)

    def _expect_exit(self) -> None:
        atexit.unregister(self._exits)
        atexit.register(self._exits)

    def _exits(self) -> None:
        lowest_rank.flush()
        for each in reversed(self._shared.subscribers):
            _guarded(each, each.exits)

    def _put_on(self, module: ModuleType, site: Site) -> None:
        site.wrap(module, "init_process_group", self._init)
        site.wrap(module, "destroy_process_group", self._destroy)
        site.at_undo(lambda: atexit.unregister(self._exits))

    def _init(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        followers = self._shared.subscribers
        with contextlib.ExitStack() as opened:
            for each in followers:
                opened.enter_context(each.coming_up(args, kwargs))
            result = wrapped(*args, **kwargs)
        self._expect_exit()
        for each in followers:
            _guarded(each, each.up)
        return result

    def _destroy(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        given = kwargs.get("group", args[0] if args else None)
        followers = self._shared.subscribers[::-1]
        if given is None or given is getattr(distributed.group, "WORLD", None):
            lowest_rank.flush()
            for each in followers:
                _guarded(each, each.leaving)
        result = wrapped(*args, **kwargs)
        if not distributed.is_initialized():
            atexit.unregister(self._exits)
        return result


def _guarded(follower: Follower, action: Callable[[], None]) -> None:
    """Call a follower: what fails in it is no reason for the program's own call to fail."""
    try:
        action()
    except Exception as error:
        log.debug(f"{follower.place} of the process group: {error!r}")
