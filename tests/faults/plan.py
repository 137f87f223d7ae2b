"""What is run: a seed decides the fault, the program, the ranks and the settings of ddpfix."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Sequence, Tuple

# Steps of the optimizer in each run, and the ones before which nothing happens.
STEPS, FIRST = 8, 3
# A kind of fault -> what can be drawn for it.
KINDS: Dict[str, Sequence[str]] = {
    "kill": ("start", "forward", "backward", "update", "any"),
    "stop": ("start", "forward", "backward", "update"),
    "forward": ("raises",),
    "backward": ("raises",),
    "loader": ("raises", "in a worker"),
    "hook": ("communication", "parameter", "module"),
    "worker": ("killed",),
    "full disk: trace": ("at start", "in the run"),
    "full disk: checkpoint": ("rank 0",),
    "full disk: error file": ("raises",),
    "clock": ("back a day", "on a day", "to 1970", "back and forth"),
    "slow store": ("0.02", "0.1"),
    "store gone": ("before the model", "in the run"),
    "late patcher": ("wraps", "plain function", "subclass", "in the run"),
    "undo": ("all ranks", "one rank"),
    "memory": ("tight", "used up"),
}
PROGRAMS = ("plain", "unused", "layerdrop", "accumulation", "checkpoint")


@dataclass(frozen=True)
class Plan:
    """One run.

    Attributes:
        seed: decides all of it.
        kind: of the fault.
        how: which of the kind.
        size: the number of ranks.
        rank: the one that it strikes.
        step: before which optimizer step, from 0, it strikes.
        program: which of the tiny models is trained.
        environ: the settings of ddpfix.
        ddpfix: whether it is active.
    """

    seed: int
    kind: str
    how: str
    size: int
    rank: int
    step: int
    program: str
    environ: Tuple[Tuple[str, str], ...]
    ddpfix: bool = True

    def dump(self) -> Dict[str, Any]:
        return {**asdict(self), "environ": dict(self.environ)}


def draw(seed: int, kind: str = "") -> Plan:
    """The run of a seed.

    Args:
        seed: any number; kinds take turns.
        kind: the kind of fault, if it is not the one whose turn it is.
    """
    names: List[str] = list(KINDS)
    source = random.Random(seed)
    chosen = kind or names[seed % len(names)]
    environ = {"DDPFIX_UNUSED": source.choice(("late", "auto"))}
    if source.random() < 0.5 or chosen == "full disk: trace":
        environ["DDPFIX_TRACE"] = "trace"
    environ["DDPFIX_HANG"] = source.choice(("1", "off"))
    return Plan(
        seed=seed,
        kind=chosen,
        how=source.choice(KINDS[chosen]),
        size=source.choice((2, 2, 3)),
        rank=source.randrange(2),
        step=source.randrange(FIRST, STEPS - 1),
        program=source.choice(PROGRAMS),
        environ=tuple(sorted(environ.items())),
    )
