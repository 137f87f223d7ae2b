"""Runs of an Executor on ranks with different numbers of batches, unpatched or under ddpfix, and what to expect."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from tests.support import pool, scenario
from tests.wenet import trees, uneven_tiny_model

SIZE = 3


@dataclass
class Scenario(scenario.Scenario):
    """One training run."""

    counts: Sequence[int] = (3, 5)  # batches of each rank in an epoch; as many ranks as there are numbers
    cv: Sequence[int] = (1, 1, 1)
    settings: Optional[Dict[str, str]] = None
    epochs: int = 1
    accum: int = 1
    save_interval: int = 0  # steps from one validation to the next (step mode, from 3.0.0 on); 0 is epoch mode
    empty: Sequence[int] = ()  # numbers of batches that have no utterance (rank 1's begin at 100)
    # What goes wrong: {"rank", "at": number of the batch, "where": loader, worker, slow (a loader)}.
    fail: Optional[Dict[str, Any]] = None
    # Processes of the data loader, whose iterator is then a collective (it has an IterDataPipe) and which serves all
    # epochs.
    workers: int = 0
    engine: str = "torch_ddp"
    # Seconds for which a rank's process goes on after an error, as one does that has something to clean up.
    alive: float = 0
    timeout: float = 20
    function: str = "uneven"
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = len(self.counts)
        if self.settings is None:
            self.timeout = min(self.timeout, 4)


@dataclass
class Outcome:
    """What the ranks of a scenario recorded; a rank that had to be killed recorded nothing (None)."""

    ranks: List[Optional[Dict[str, Any]]]
    logs: List[str]
    sharded: bool = False

    @property
    def errors(self) -> List[str]:
        return [rank["error"] if rank else "" for rank in self.ranks]

    def word(self) -> str:
        """The outcome in a word or two."""
        if any(rank is None for rank in self.ranks):
            return "aborts" if any("gloo::EnforceNotMet" in log for log in self.logs) else "hangs"
        if not all(rank and not rank["error"] for rank in self.ranks):
            return "all end with the cause" if self.cause() and "ddpfix: " in "".join(self.logs) else "error"
        return "equal" if self.equal() else "ranks differ"

    def cause(self) -> str:
        """What all ranks name as the cause of their end; empty if not all name the same."""
        first = next(
            (error for error in self.errors if error and "ddpfix" not in error and "closed by peer" not in error), ""
        )
        first = first or self.errors[0]
        return first if first and all(first in log for log in self.logs) else ""

    def well(self) -> bool:
        """Whether no rank hung or failed; prints what they said otherwise."""
        fine = all(rank is not None and not rank["error"] for rank in self.ranks)
        if not fine:
            print(*self.logs, sep="\n----\n")
        return fine

    def equal(self) -> bool:
        """Whether all ranks had the same weights and learning rate in each step, and the same at the end."""
        # Under FSDP each rank has a part of the weights only, until the end.
        names = ("steps", "lr", "lr_after", "weights", "executor_step")[self.sharded :]
        outcomes = [{name: rank.get(name) for name in names} for rank in self.ranks if rank]
        return len(outcomes) == len(self.ranks) and all(one == outcomes[0] for one in outcomes)

    def of(self, name: str) -> List[Any]:
        return [rank.get(name) if rank else None for rank in self.ranks]


def train(tree: Path, scenarios: Sequence[Scenario], folder: Path) -> Dict[str, Outcome]:
    """Run scenarios one after the other on a tree's ranks, which stay for the next ones."""
    pool.train(trees.RANK, [each.plan(folder) for each in scenarios], folder, SIZE, {"TREE": str(tree)})
    outcomes = {}
    for each in scenarios:
        pairs = pool.records(folder, each.name, each.size)
        outcomes[each.name] = Outcome(
            [record for _, record in pairs], [log for log, _ in pairs], each.engine != "torch_ddp"
        )
    return outcomes


def era(tree: Path) -> int:
    """What the tree's Executor does about uneven data."""
    return uneven_tiny_model.era((tree / "wenet" / "utils" / "executor.py").read_text())


def shards(tree: Path) -> bool:
    """Whether this release can train under FSDP."""
    return (tree / "wenet" / "utils" / "fsdp_utils.py").exists()


def trained(counts: Sequence[int], empty: Sequence[int] = (), epochs: int = 1) -> List[List[int]]:
    """The numbers of the batches that each rank has to train, in order."""
    numbers = ([100 * rank + index for index in range(count)] for rank, count in enumerate(counts))
    return [[number for number in own if number not in empty] * epochs for own in numbers]


# The runs of :mod:`tests.wenet.test_uneven`.


def fails(where: str, at: int = 102) -> Dict[str, Any]:
    return {"rank": 1, "at": at, "where": where}


def unpatched(tree: Path) -> List[Scenario]:
    """All scenarios that a release can run, without ddpfix."""
    # The optimizer steps after the first micro-batch of a window up to 2.2.1, after the last one from 3.0.0 on.
    empty = [101] if era(tree) == 3 else [102]
    plans = [
        Scenario("uneven", (3, 5), epochs=2),
        Scenario("nothing", (0, 3)),
        Scenario("three", (2, 4, 3)),
        Scenario("empty", (4, 4), accum=2, empty=empty),
        Scenario("loader", (4, 4), fail=fails("loader"), alive=8),
        Scenario("worker", (4, 4), fail=fails("worker"), alive=8, workers=1, epochs=2),
    ]
    if era(tree) > 1:
        plans.append(Scenario("validation", (2, 2), cv=(2, 4)))
    if era(tree) == 3:
        plans.append(Scenario("step_mode", (3, 5), save_interval=2))
    if shards(tree):
        plans.append(Scenario("fsdp", (3, 5), engine="torch_fsdp"))
        plans.append(Scenario("slow", (4, 4), engine="torch_fsdp", fail=fails("slow")))
    return plans


def patched(tree: Path) -> List[Scenario]:
    """The same with ddpfix, and some of its own."""
    plans = [replace(plan, settings={}, timeout=20, alive=min(plan.alive, 1.5)) for plan in unpatched(tree)]
    one = {scenario.name: scenario for scenario in plans}
    stop, off = {"uneven": "stop"}, {"uneven": "off"}
    plans += [replace(one[name], name=f"{name}_stop", settings=stop) for name in ("uneven", "nothing", "three")]
    plans.append(Scenario("pipe", (3, 5), settings={}, workers=1, epochs=2))
    plans.append(Scenario("pipe_stop", (3, 5), settings=stop, workers=1, epochs=2))
    plans.append(Scenario("asked_pad", (2, 2), settings={"uneven": "pad"}))
    if "validation" in one:
        # After an epoch under model.join, which is what makes unpatched WeNet hang.
        plans.append(replace(one["validation"], name="validation_off", settings=off))
    if "step_mode" in one:
        plans.append(replace(one["step_mode"], name="step_mode_stop", settings=stop))
    if "fsdp" in one:
        plans += [replace(one[name], name=f"{name}_off", settings=off, timeout=20) for name in ("fsdp", "slow")]
        plans.append(replace(one["fsdp"], name="fsdp_join", settings={"uneven": "join"}))
        plans.append(replace(one["fsdp"], name="fsdp_nothing", counts=(0, 3)))
    return plans
