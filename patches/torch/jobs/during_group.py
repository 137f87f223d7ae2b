"""A thread that runs while the process group of all ranks is up: begun when it comes up, ended before it goes."""

from __future__ import annotations

from typing import Any

from torch import distributed

from ddpfix import log
from ddpfix.ranks.store.connection import is_torchs
from ddpfix.ranks.store.keys import default_store

from ..pipeline.process_group import Follower


class DuringGroup(Follower):
    """Runs while a group of several ranks is up whose store can be asked from a thread."""

    def make(self, store: Any, rank: int, size: int) -> None:
        """Begin, with the group's store, this rank and the number of ranks."""
        raise NotImplementedError

    def end(self, how: str) -> None:
        """End what has been made: ``left`` (the rank leaves its group), ``stopped``."""
        raise NotImplementedError

    def up(self) -> None:
        store = default_store()
        if store is None or distributed.get_world_size() == 1:
            return
        self.end("stopped")
        if not is_torchs(store):
            log.debug(
                f"ranks are not asked how they are: the group's store is a {type(store).__name__} of the program's"
            )
            return
        try:
            self.make(store, distributed.get_rank(), distributed.get_world_size())
        except Exception as error:
            log.debug(f"nothing runs beside this job: {error!r}")

    def leaving(self) -> None:
        self.end("left")

    def undone(self) -> None:
        self.end("stopped")
