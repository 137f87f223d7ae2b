"""Draws a training loop from a seed: its model, who uses which part of it when, and what the loop does."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, fields
from typing import Any, Dict, List, Sequence, Tuple

# Of one call of the model: the branches in their order, the heads.
Use = Tuple[List[int], List[int]]
BACKWARDS = {
    "one": 9,
    "each head": 4,
    "auxiliary loss": 3,
    "retained": 1,
    "input gradient": 2,
    "input penalty": 2,
    "inputs": 2,
    "inputs, in two": 1,
    "two forwards": 2,
    "no loss of some": 1,
}
BETWEEN = {
    "clip": 4,
    "clip values": 1,
    "own norm": 2,
    "scale": 2,
    "set to none": 1,
    "replace": 1,
    "decay": 1,
    "finite": 2,
    "all_reduce": 3,
    "barrier": 1,
    "send": 1,
    "gather": 1,
}
EVALUATIONS = (
    "ddp, no_grad",
    "ddp, inference",
    "module, no_grad",
    "module, first rank",
    "ddp, first rank",
    "train mode",
)
HOOKS = ("forward", "backward", "output", "hidden", "parameter", "accumulated, counts", "accumulated, scales")
OPTIMIZERS = ("SGD", "SGD, momentum", "SGD, decay", "Adam", "AdamW", "two", "closure", "scaler")


@dataclass
class Plan:
    """A training loop, in words that :mod:`tests.harm.loops.source` writes out."""

    seed: int
    ranks: int
    steps: int = 4
    micro: int = 1
    no_sync: bool = False
    double: bool = True
    branches: int = 2
    heads: int = 1
    apart: bool = False  # whether the heads share nothing
    norm: str = ""
    dropout: bool = False
    never: bool = False
    tied: bool = False
    output: str = "tuple"
    checkpoint: str = ""  # "", "branch" or "whole"
    reentrant: bool = False
    pattern: str = "all"
    uses: List[List[Use]] = field(default_factory=list)  # who uses what: by rank, then by call of the model in training
    backward: str = "one"  # of :data:`BACKWARDS`
    between: List[str] = field(default_factory=list)
    optimizer: str = "SGD"
    set_to_none: bool = True
    options: Dict[str, Any] = field(default_factory=dict)  # of DistributedDataParallel
    # The part without gradients before the model is wrapped; ``frozen_at`` is the step from which a head has none.
    frozen: str = ""
    frozen_at: int = -1
    hooks: List[str] = field(default_factory=list)
    hooks_first: bool = True
    evaluation: str = ""
    other: str = ""  # the second model: "", "joint" (one loss), "critic" (its own loss and optimizer) or "idle"
    data: str = "drawn"
    noise: List[str] = field(default_factory=list)

    def words(self) -> List[str]:
        """What is not as in the simplest loop, a line each."""
        simplest = Plan(self.seed, self.ranks)
        left_out = ("seed", "ranks", "uses")
        names = [each.name for each in fields(self) if each.name not in left_out]
        return [f"{name}: {getattr(self, name)}" for name in names if getattr(self, name) != getattr(simplest, name)]


def draw(seed: int, ranks: int) -> Plan:
    """The plan of a seed; that of another number of ranks differs in who uses what."""
    chance = random.Random(seed)
    plan = Plan(seed, ranks, steps=chance.choice((3, 4, 5)), double=chance.random() < 0.75)
    _model(plan, chance)
    _loop(plan, chance)
    _surroundings(plan, chance)
    _possible(plan, chance)
    calls = plan.steps * plan.micro * (2 if plan.backward == "two forwards" else 1)
    plan.uses = _uses(plan, chance, calls)
    return plan


def _weighted(chance: random.Random, of: Dict[str, int]) -> str:
    return chance.choices(list(of), list(of.values()))[0]


def _model(plan: Plan, chance: random.Random) -> None:
    plan.apart = chance.random() < 0.2
    plan.branches = 0 if plan.apart else chance.choice((0, 1, 2, 2, 3))
    plan.heads = chance.choice((2, 3)) if plan.apart else chance.choice((1, 1, 2, 3))
    plan.norm = chance.choice(("", "", "", "batch", "counter"))
    plan.dropout = chance.random() < 0.4
    plan.never = chance.random() < 0.08
    plan.tied = plan.branches > 1 and chance.random() < 0.1
    plan.output = chance.choice(("tuple", "tuple", "dict", "sum"))
    plan.checkpoint = chance.choice(("", "", "", "branch", "whole"))
    plan.reentrant = bool(plan.checkpoint) and chance.random() < 0.5
    plan.pattern = _weighted(chance, {"all": 8, "same": 2, "differ": 3, "rank": 2, "rare": 2, "twice": 1})


def _loop(plan: Plan, chance: random.Random) -> None:
    plan.micro = chance.choice((1, 1, 1, 2, 3))
    plan.no_sync = plan.micro > 1 and chance.random() < 0.6
    plan.backward = _weighted(chance, BACKWARDS)
    count = chance.choice((0, 0, 1, 1, 2, 3))
    plan.between = [_weighted(chance, BETWEEN) for _ in range(count)]
    plan.optimizer = chance.choice(OPTIMIZERS)
    plan.set_to_none = chance.random() < 0.8
    plan.evaluation = chance.choice(("", "", *EVALUATIONS))
    plan.other = chance.choice(("", "", "", "", "joint", "critic", "idle"))


def _surroundings(plan: Plan, chance: random.Random) -> None:
    choices: Sequence[Tuple[str, Any, float]] = (
        ("find_unused_parameters", True, 0.3),
        ("find_unused_parameters", False, 0.04),
        ("static_graph", True, 0.05),
        ("gradient_as_bucket_view", True, 0.3),
        ("bucket_cap_mb", chance.choice((0.0001, 0.0005, 1)), 0.5),
        ("broadcast_buffers", False, 0.1),
    )
    plan.options = {name: value for name, value, share in choices if chance.random() < share}
    plan.frozen = chance.choice(("", "", "", "", "stem", "branch", "head"))
    plan.frozen_at = 2 if chance.random() < 0.05 else -1
    plan.hooks = chance.sample(HOOKS, chance.choice((0, 0, 0, 1, 2)))
    plan.hooks_first = chance.random() < 0.5
    plan.data = chance.choice(("drawn", "drawn", "loader"))
    plan.noise = [name for name in ("random", "numpy", "torch") if chance.random() < 0.25]


def _possible(plan: Plan, chance: random.Random) -> None:
    """Take out what no torch trains, whoever averages."""
    if plan.apart:
        plan.frozen = ""
        plan.output = "tuple" if plan.output == "sum" else plan.output
        plan.hooks = [hook for hook in plan.hooks if hook != "hidden"]
        plan.checkpoint = "whole" if plan.checkpoint else ""
        plan.backward = chance.choice(("each head", "each head", "one")) if plan.backward != "one" else "one"
    if plan.frozen == "branch" and not plan.branches or plan.backward == "auxiliary loss":
        plan.frozen = ""
    if plan.heads == 1 and plan.frozen == "head":
        plan.frozen = ""
    if plan.frozen == "head":
        plan.hooks = [hook for hook in plan.hooks if hook != "parameter"]
    if plan.heads == 1 or plan.apart:
        plan.frozen_at = -1
    if plan.reentrant:
        # A reentrant checkpoint refuses autograd.grad and backward(inputs=...), and runs its inside without a graph.
        if plan.backward in ("input gradient", "input penalty", "inputs", "inputs, in two"):
            plan.backward = "one"
        if plan.checkpoint == "whole":
            plan.backward = "one" if plan.backward == "auxiliary loss" else plan.backward
            plan.hooks = [hook for hook in plan.hooks if hook not in ("hidden", "backward")]
    if plan.norm == "batch" and plan.backward == "input penalty":
        plan.norm = ""
    if plan.evaluation == "ddp, first rank" and plan.norm:
        plan.evaluation = "module, first rank"
    if plan.evaluation == "train mode" and plan.norm:
        plan.evaluation = "ddp, no_grad"
    if plan.options.get("static_graph"):
        plan.no_sync = False
        plan.options.pop("find_unused_parameters", None)
        plan.frozen_at = -1
    if plan.backward == "no loss of some" and plan.heads == 1:
        plan.backward = "one"
    if plan.backward == "each head" and plan.other == "joint":
        plan.other = "critic"
    if plan.optimizer == "closure":
        plan.between = []
    if plan.optimizer in ("Adam", "AdamW", "two"):
        # They make a whole step of a gradient that is next to nothing.
        plan.double = True


def _uses(plan: Plan, chance: random.Random, calls: int) -> List[List[Use]]:
    everything: Use = (list(range(plan.branches)), list(range(plan.heads)))
    if plan.pattern == "same":
        same = [_some(plan, chance) for _ in range(calls)]
        return [same] * plan.ranks
    if plan.pattern == "rank":
        return [[_some(plan, chance)] * calls for _ in range(plan.ranks)]
    if plan.pattern == "differ":
        return [[_some(plan, chance) for _ in range(calls)] for _ in range(plan.ranks)]
    if plan.pattern == "twice":
        again = [chance.randrange(plan.branches)] if plan.branches else []
        return [[(everything[0] + again, everything[1])] * calls for _ in range(plan.ranks)]
    table = [[everything] * calls for _ in range(plan.ranks)]
    if plan.pattern == "rare":
        table[chance.randrange(plan.ranks)][chance.randrange(calls)] = _some(plan, chance)
    return table


def _some(plan: Plan, chance: random.Random) -> Use:
    """Some branches; as many heads on each rank where each has a backward of its own."""
    branches = [n for n in range(plan.branches) if chance.random() < 0.6]
    if plan.backward == "each head":
        return branches, chance.sample(range(plan.heads), plan.heads)
    return branches, [n for n in range(plan.heads) if chance.random() < 0.6] or [chance.randrange(plan.heads)]
