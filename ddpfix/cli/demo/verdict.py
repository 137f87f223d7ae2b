"""What a training of the demo has to show: unpatched it fails as expected, under ddpfix it learns and ranks agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from ddpfix.cli.demo.ranks import RANKS, Job

UNFINISHED = "Expected to have finished reduction in the prior iteration"

# Below this many steps there is too little to judge a loss by.
JUDGED_STEPS = 20


@dataclass(frozen=True)
class Failure:
    """How the unpatched training failed: on which rank, in which step, the message, and the messages of other ranks."""

    rank: int
    step: int
    text: str
    others: Dict[int, str]


@dataclass(frozen=True)
class Step:
    """One step as all ranks recorded it; None for a rank that did not reach it."""

    number: int
    skipped: Tuple[Optional[Tuple[str, ...]], ...]
    loss: float

    @property
    def agreed(self) -> bool:
        return len(set(self.skipped)) == 1


def steps(job: Job) -> List[Step]:
    """Return the ranks' records, step by step; the loss is the mean over the ranks."""
    by_step: Dict[int, Dict[int, Tuple[Tuple[str, ...], float]]] = {}
    for line in job.lines("step"):
        by_step.setdefault(line["step"], {})[line["rank"]] = (tuple(line["skipped"]), line["loss"])
    recorded = []
    for number, ranks in sorted(by_step.items()):
        skipped = tuple(ranks[rank][0] if rank in ranks else None for rank in range(RANKS))
        recorded.append(Step(number, skipped, sum(loss for _, loss in ranks.values()) / len(ranks)))
    return recorded


def failure(job: Job) -> Optional[Failure]:
    """Return the known failure of unpatched training, or None if it did not fail or failed otherwise."""
    errors = {rank: job.error(rank) for rank in range(RANKS)}
    for rank, text in errors.items():
        if job.code and UNFINISHED in text:
            others = {other: error for other, error in errors.items() if other != rank and error}
            # A forward that ends is recorded; this error is raised before the next one begins.
            return Failure(rank, len(steps(job)) + 1, text, others)
    return None


def complaints(job: Job) -> List[str]:
    """Return the faults of a training under ddpfix; an empty list is a pass."""
    if job.code != 0:
        return [f"the training did not finish: {first_error(job)}"]
    wrong, done = [], steps(job)
    if [step.number for step in done if None not in step.skipped] != list(range(1, job.steps + 1)):
        wrong.append(f"{len(done)} of {job.steps} steps were recorded by every rank")
    apart = [step.number for step in done if not step.agreed]
    if apart:
        wrong.append(f"the ranks skipped different layers in {len(apart)} of {len(done)} steps (first: {apart[0]})")
    if not any(part for step in done for part in step.skipped):
        wrong.append("no layer was ever skipped, so nothing was shown")
    if [line["identical"] for line in job.lines("identical")] != [True] * RANKS:
        wrong.append("the ranks ended with different parameters")
    if len(done) >= JUDGED_STEPS and not learned(done):
        wrong.append("the loss did not go down")
    return wrong


def first_error(job: Job) -> str:
    """Return one line on why a training failed."""
    errors = [f"rank {rank}: {text.splitlines()[0]}" for rank in range(RANKS) for text in [job.error(rank)] if text]
    return errors[0] if errors else f"exit code {job.code} of the launcher after {job.seconds:.0f} s and no traceback"


def learned(done: List[Step]) -> bool:
    first, last = ends(done)
    return last < 0.7 * first


def ends(done: List[Step]) -> Tuple[float, float]:
    """Return the mean loss of the first and of the last five steps."""
    count = max(1, min(5, len(done) // 2))
    losses = [step.loss for step in done]
    return sum(losses[:count]) / count, sum(losses[-count:]) / count
