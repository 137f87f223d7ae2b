"""Runs of the tiny recipe (:mod:`tests.speechbrain.tiny_recipe`) on two ranks, and what they have to come to."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from packaging.version import Version

from tests.speechbrain import launch, recipes, tiny_recipe
from tests.support import scenario

RELEASE = recipes.release()
# One micro-batch: the number of its input on each rank; None where a rank contributes nothing.
Micro = Sequence[Optional[int]]
# What each rank left, by the scenario's name; and the folder of the scenarios.
Runs = Dict[str, List[launch.Result]]
Side = Tuple[Path, Runs]


def since(first: str, before: str = "99") -> bool:
    return Version(first) <= RELEASE < Version(before)


def run(folder: Path, name: str, options: Sequence[str] = (), **changes: Any) -> launch.Scenario:
    """One run; ``changes`` are values of the yaml, or of the scenario (settings, timeout, before, environ)."""
    file = folder / "tiny.yaml"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(tiny_recipe.YAML)
    known = {key: changes.pop(key) for key in ("settings", "timeout", "before", "environ") if key in changes}
    known.setdefault("timeout", 30)
    typed = [f"--{key}={value}" for key, value in changes.items()]
    return launch.Scenario(name, file, options=[*typed, *options], script=tiny_recipe.SCRIPT, **known)


def sides(
    plans: Callable[[Path, bool], List[launch.Scenario]], names: Tuple[str, str] = ("unpatched", "patched")
) -> Tuple[Any, Any]:
    """The fixtures of a module of tests: runs without ddpfix and with it, and where they were."""
    return scenario.sides(lambda runs, where, ddpfix: (where, launch.train(runs, where, ddpfix)), plans, names)


def end(folder: Path, name: str, rank: int) -> Dict[str, Any]:
    """What a rank of the tiny recipe had at its end."""
    record: Dict[str, Any] = torch.load(folder / name / f"end{rank}.pt")
    return record


def weights() -> List[torch.Tensor]:
    torch.manual_seed(7)
    model = torch.nn.Linear(4, 1)
    return [model.weight.detach(), model.bias.detach()]


def by_hand(steps: Sequence[Sequence[Micro]], lr: Any = 0.1, clip: float = 5.0) -> List[torch.Tensor]:
    """The weights after SGD steps, each on the mean over ranks and micro-batches of one input's squared output."""
    now = weights()
    for micros, rate in zip(steps, lr if isinstance(lr, list) else [lr] * len(steps)):
        weight, bias = now = [each.requires_grad_() for each in now]
        outputs = [(micro, weight @ tiny_recipe.row(i) + bias) for micro in micros for i in micro if i is not None]
        loss = sum((output.square().sum() / len(micro) for micro, output in outputs), torch.zeros(()))
        grads = torch.autograd.grad(loss / len(micros), now)
        norm = torch.sqrt(sum((grad.square().sum() for grad in grads), torch.zeros(())))
        scale = min(1.0, clip / (float(norm) + 1e-6))
        now = [each.detach() - rate * scale * grad for each, grad in zip(now, grads)]
    return now


def error(folder: Path, name: str, expected: List[torch.Tensor], rank: int = 0) -> float:
    """Largest difference between a rank's last weights and the expected ones."""
    record = end(folder, name, rank)
    pairs = zip((record["weight"], record["bias"]), expected)
    return max(float((mine - theirs).abs().max()) for mine, theirs in pairs)


def well(results: List[launch.Result]) -> bool:
    """Whether no rank hung or failed; prints what they said otherwise."""
    for result in results:
        if result.hung or result.error:
            print(result.hung, result.error, result.log)
    return not any(result.hung or result.error for result in results)


def alike(results: List[launch.Result]) -> bool:
    """Whether all ranks ended, with the same weights after each step, and with the same learning rates."""
    first = results[0]
    return well(results) and all(r.steps == first.steps and r.lr == first.lr for r in results) and bool(first.steps)


def as_by_hand(side: Side, name: str, steps: Sequence[Sequence[Micro]], limit: float = 1e-6, **how: Any) -> None:
    """A run ended on all ranks alike, after these steps, where training by hand (:func:`by_hand`) comes to."""
    where, runs = side
    assert alike(runs[name]) and len(runs[name][0].steps) == len(steps)
    expected = by_hand(steps, **how)
    assert max(error(where, name, expected, rank) for rank in range(len(runs[name]))) < limit
