"""The process group, the collectives and ddpfix's agreement, each under a watch that ends a rank that gets stuck."""

from __future__ import annotations

import contextlib
import threading
import time
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional

from ddpfix.cli.doctor import private
from ddpfix.cli.doctor.ranks import measure
from ddpfix.cli.doctor.ranks.place import Place
from ddpfix.cli.doctor.ranks.rendezvous import Rendezvous
from ddpfix.ranks.agreement import presence, rendezvous

MAKING, AGREEING = "making the process group", "ddpfix's agreement"
# What a rank does, in this order.
STAGES = (MAKING, *(measure.title(name, bytes_) for name, bytes_, _ in measure.PLAN), AGREEING, "done")


class Deadline:
    """Calls a function in a thread if the main one has not come to its end within the limit.

    Args:
        limit: seconds.
        overdue: what is called then; it ends the process.
    """

    def __init__(self, limit: float, overdue: Callable[[], None]) -> None:
        self._done = threading.Event()
        self._limit, self._overdue = limit, overdue
        threading.Thread(target=self._wait, name="ddpfix-doctor", daemon=True).start()

    def end(self) -> None:
        """The main thread has come to its end."""
        self._done.set()

    def _wait(self) -> None:
        if not self._done.wait(self._limit):
            self._overdue()


class Group:
    """What one rank does together with the others.

    Args:
        place: of this rank.
        meeting: where a group may be made.
        notes: another connection, on which this rank tells what it does while the first one waits.
        limit: seconds for all of it.
    """

    def __init__(self, place: Place, meeting: Rendezvous, notes: Rendezvous, limit: float) -> None:
        self._place, self._meeting, self._notes, self._limit = place, meeting, notes, limit
        self._stage = MAKING

    def run(self, backend: str, facts: Dict[str, str], patience: float) -> Dict[str, Any]:
        """Do all of it; returns how it went, as plain data.

        Args:
            backend: of the group.
            facts: what ddpfix compares.
            patience: seconds that ddpfix waits for a rank without it.
        """
        word: Dict[str, Any] = {"error": None, "times": {}, "clock": None, "agreement": None}
        try:
            self._run(word, backend, facts, patience)
        except Exception as error:
            word["error"] = f"{self._stage}: {private.error(error)}"
        return word

    def _run(self, word: Dict[str, Any], backend: str, facts: Dict[str, str], patience: float) -> None:
        import torch
        from torch import distributed

        self._begin(MAKING)
        device = torch.device("cpu")
        if backend == "nccl":
            device = torch.device("cuda", self._place.local)
            torch.cuda.set_device(device)
        # NCCL would end the process at its own limit, before anything is told.
        limit = self._limit * (4 if backend == "nccl" else 0.9)
        begun = time.perf_counter()
        distributed.init_process_group(
            backend,
            store=self._meeting.group_store(),
            rank=self._place.rank,
            world_size=self._place.size,
            timeout=timedelta(seconds=limit),
        )
        word["group_seconds"] = time.perf_counter() - begun
        times = measure.run(torch, device, self._place.rank, self._place.size, self._begin)
        word["times"] = {name: list(each) for name, each in times.items()}
        distributed.barrier()
        word["clock"] = time.time()
        self._begin(AGREEING)
        word["agreement"] = self._agree(facts, patience)
        self._begin("done")

    def _agree(self, facts: Dict[str, str], patience: float) -> Dict[str, Any]:
        begun = time.perf_counter()
        presence.announce()
        problem: Optional[str] = None
        try:
            members = rendezvous.Members("doctor", list(range(self._place.size)), self._place.rank)
            rendezvous.meet(members, facts, 0, patience)
        except rendezvous.AgreementError as error:
            problem = private.text(str(error))
        return {"problem": problem, "seconds": time.perf_counter() - begun}

    def _begin(self, stage: str) -> None:
        self._stage = stage
        self._notes.begin(STAGES.index(stage), stage)

    @staticmethod
    def close() -> None:
        """Leave the group, as far as one was made."""
        with contextlib.suppress(Exception):
            from torch import distributed

            if distributed.is_initialized():
                distributed.destroy_process_group()


def behind(stages: Dict[int, Any], size: int) -> List[str]:
    """Return the ranks behind the others, in words: one line for each stage that ranks are in, the earliest first.

    Args:
        stages: by rank: number and name.
        size: the world size.
    """
    from ddpfix.cli.doctor.ranks.compare import listed

    by_stage: Dict[int, List[int]] = {}
    for rank in range(size):
        by_stage.setdefault(stages.get(rank, [-1, ""])[0], []).append(rank)
    names = {-1: "before the process group", **dict(enumerate(STAGES))}
    return [f"rank {listed(ranks)}: {names[number]}" for number, ranks in sorted(by_stage.items())]
