"""What DDP itself finds of a model's parameters, in plain torch on real ranks; what the probe is held to.

All ranks have the same weights, batches and random numbers, so that a parameter that is not used on one of them is used
on none: DDP with the flag leaves its gradient None, and DDP without it names it in its error.
"""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, List, Sequence

import numpy
import torch
from torch.nn.parallel import DistributedDataParallel

from ddpfix.probing.program import Program
from ddpfix.probing.result import Result

_INDICES = re.compile(r"did not receive grad for rank \d+: ([\d ]+?)(?:\.\.\.)?\n? ?(?:In addition|$)")
# Parameters that it names.
MOST = 100
_ERROR = "Expected to have finished reduction"


@dataclass
class Subject:
    """One model to be looked at."""

    build: Callable[[], Any]  # makes it; equal models each time
    batches: Sequence[Any]
    loss: Callable[[Any, Any], Any]
    # Whether it trains with the flag; an output outside of the loss, and reentrant checkpointing do not.
    flagged: bool = True


def seeded() -> None:
    torch.manual_seed(11)
    numpy.random.seed(11)
    random.seed(11)


def called(model: Any, batch: Any) -> Any:
    if isinstance(batch, dict):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)


def by_the_flag(subject: Subject) -> Dict[str, int]:
    """In how many steps DDP with the flag left a parameter without gradient, for those that ever were."""
    model = DistributedDataParallel(subject.build(), find_unused_parameters=True)
    seeded()
    without: Counter[str] = Counter()
    for batch in subject.batches:
        model.zero_grad(set_to_none=True)
        subject.loss(called(model, batch), batch).backward()
        without.update(name for name, p in model.module.named_parameters() if p.requires_grad and p.grad is None)
    return dict(without)


def by_the_error(subject: Subject) -> List[str]:
    """The parameters that DDP without the flag names at the beginning of the second step: a hundred at most."""
    model = DistributedDataParallel(subject.build())
    names = [name for name, parameter in model.module.named_parameters() if parameter.requires_grad]
    seeded()
    try:
        for batch in (subject.batches[0], subject.batches[0]):
            subject.loss(called(model, batch), batch).backward()
    except RuntimeError as error:
        if _ERROR not in str(error):
            raise
        found = _INDICES.search(str(error))
        assert found is not None, str(error)
        return [names[int(index)] for index in found[1].split()]
    return []


def observed(model: Any, batches: Iterable[Any], loss: Callable[[Any, Any], Any]) -> Result:
    """What the probe finds of a loop over some batches, without DDP and without an optimizer that changes anything."""
    program = Program(sys.maxsize, lambda *given: None, lambda: None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    program.start()
    try:
        for batch in batches:
            optimizer.zero_grad()
            loss(called(model, batch), batch).backward()
            optimizer.step()
    finally:
        program.stop()
    assert program.failure is None, program.failure
    (found,) = program.results()
    return found


def by_the_probe(subject: Subject, steps: int) -> Result:
    model = subject.build()
    seeded()
    return observed(model, subject.batches[:steps], subject.loss)


def compared(subject: Subject) -> Dict[str, Any]:
    """Both sides of one model, as plain data."""
    steps = len(subject.batches)
    found = by_the_probe(subject, steps)
    first = by_the_probe(subject, 1)
    return {
        "steps": steps,
        "ddp": by_the_flag(subject) if subject.flagged else None,
        "named": by_the_error(subject),
        "probe": {**dict.fromkeys(found.always, steps), **found.sometimes},
        "always": found.always,
        "sometimes": found.sometimes,
        # In the order of the parameters, as the error has them.
        "first": first.always[:MOST],
        "reached": sorted(set(first.always) - set(first.outside)),
        "setting": found.setting,
        "unused": found.unused,
        "skips": [[skip["kind"], skip["rate"]] for skip in found.skips],
        "parameters": found.trainable,
    }
