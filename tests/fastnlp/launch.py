"""Runs fastNLP on real ranks, unpatched or under ddpfix, and collects what the ranks saw.

Most scenarios run in forked ranks, as torchrun starts them; :func:`alone` has fastNLP start its other ranks itself.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from tests.fastnlp.releases import RAISED
from tests.support import pool, ranks, results, scenario
from tests.support.results import well

RANK = Path(__file__).with_name("rank.py")
JOB = Path(__file__).with_name("job.py")
FAILURE = "Expected to have finished reduction in the prior iteration"


@dataclass
class Scenario(scenario.Scenario):
    """One training run."""

    model: str = "spare"  # a key of :data:`tests.fastnlp.models.MODELS`
    kwargs: Dict[str, Any] = field(default_factory=dict)  # keywords of ``Trainer`` or ``DistTrainer``
    # Which rank (every one if left out) fails, and where: train or evaluate; and how.
    fail: Optional[Dict[str, Any]] = None
    settings: Dict[str, str] = field(default_factory=dict)
    before: str = ""  # code that runs before the trainer is made; it finds ``model``, ``given`` and ``record``
    after: str = ""
    evaluate: bool = False
    first: str = ""
    timeout: float = 60


@dataclass
class Result(results.Result):
    """What one rank saw."""

    steps: List[str] = field(default_factory=list)
    ddp: List[Dict[str, Any]] = field(default_factory=list)
    places: Dict[str, str] = field(default_factory=dict)  # the state of ddpfix's patches in that process
    given_stays: bool = True  # whether the keywords that the user gave are what they were

    def failure(self) -> str:
        """The error; of a rank that was ended, what DDP raised before, or "" if it raised nothing."""
        raised = (line for line in self.log.splitlines() if line.startswith(RAISED))
        return self.error or next(raised, "")


def train(scenarios: Sequence[Scenario], folder: Path, ddpfix: bool) -> Dict[str, List[Result]]:
    """Run scenarios one after the other on two ranks; returns the results by name, in the order of ranks."""
    return pool.results(RANK, scenarios, folder, 2, {"DDPFIX": "1"} if ddpfix else {}, Result)


def alone(
    one: Scenario, folder: Path, words: Sequence[str] = (str(JOB),), environ: Optional[Dict[str, str]] = None
) -> Tuple[int, str, List[Result]]:
    """Start one process (a script or ``-m module``, perhaps behind ``-m ddpfix run``); fastNLP starts the others.

    Returned are the exit code (negative: the signal), everything on the screen, and each rank's record.
    """
    options = folder / f"{one.name}.options.json"
    options.write_text(json.dumps({**asdict(one), "folder": str(folder)}))
    command = [sys.executable, *words, str(options)]
    code, screen = ranks.run(command, ranks.with_release(environ), folder, one.timeout)
    left = [record for _, record in pool.records(folder, one.name, 2)]
    return code, screen, [Result.of(screen, record) for record in left]


def finished(results: List[Result]) -> List[str]:
    """The steps of a run that came to its end, the same on both ranks."""
    well(results)
    assert results[0].steps == results[1].steps
    assert len(results[0].steps) == 4
    return results[0].steps


def failures(results: List[Result]) -> List[str]:
    """The errors of the ranks that could say one; from 1.0.0 on the failing rank ends the other."""
    messages = [result.failure() for result in results if not result.hung or result.failure()]
    assert messages and all(messages), results[0].log
    return messages
