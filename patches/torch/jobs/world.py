"""What runs beside a job while the process group of all ranks is up: made when it comes up, told when it ends."""

from __future__ import annotations

import atexit
from types import ModuleType
from typing import Any, Callable

from torch import distributed

from ddpfix import log
from ddpfix.patching.site import Site
from ddpfix.ranks.connection import is_torchs
from ddpfix.ranks.store import default_store


class World:
    """Follows the default group of this process.

    Args:
        make: called with the group's store, this rank and the number of ranks, where there are several.
        end: ends what has been made, with how: ``left`` (the rank has left its group), ``stopped``.
        leave: called by atexit, where the program ends with its group up.
    """

    def __init__(
        self, make: Callable[[Any, int, int], object], end: Callable[[str], object], leave: Callable[[], object]
    ) -> None:
        self._make, self._end, self._leave = make, end, leave

    def follow(self, site: Site, module: ModuleType) -> None:
        """Begin when the process group comes up, or at once where it is up already."""
        site.wrap(module, "init_process_group", self._up)
        site.at_undo(self._forget)
        if distributed.is_available() and distributed.is_initialized():
            self._begin()

    def follow_end(self, site: Site, module: ModuleType) -> None:
        """A rank that leaves its process group says so."""
        site.wrap(module, "destroy_process_group", self._down)

    def _up(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        self._begin()
        return result

    def _down(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        given = kwargs.get("group", args[0] if args else None)
        if given is None or given is getattr(distributed.group, "WORLD", None):
            self._stop("left")
        return wrapped(*args, **kwargs)

    def _begin(self) -> None:
        store = default_store()
        if store is None or distributed.get_world_size() == 1:
            return
        self._stop("stopped")
        if not is_torchs(store):
            log.debug(
                f"ranks are not asked how they are: the group's store is a {type(store).__name__} of the program's"
            )
            return
        try:
            self._make(store, distributed.get_rank(), distributed.get_world_size())
        except Exception as error:
            log.debug(f"nothing runs beside this job: {error!r}")
        # Functions of the program that were registered before run after this one.
        atexit.register(self._leave)

    def _stop(self, how: str) -> None:
        self._end(how)
        atexit.unregister(self._leave)

    def _forget(self) -> None:
        self._stop("stopped")
