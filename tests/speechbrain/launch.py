"""Runs recipes of SpeechBrain on real ranks, unpatched or under ddpfix, and collects what the ranks saw."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from packaging.version import Version

from tests.speechbrain import recipes
from tests.support import pool, results, scenario

RANK = Path(__file__).with_name("rank.py")


@dataclass
class Scenario(scenario.Scenario):
    """One training run.

    Attributes:
        yaml: path of the hyperparameters (see :mod:`tests.speechbrain.recipes`).
        options: what a user types behind it. ``--device=cpu`` and gloo are added, and before 0.5.16 what makes a
            release train on several processes.
        settings: arguments of ``ddpfix.activate`` in the child; in an unpatched launch they switch ddpfix on, late.
        before: Python code run just before the recipe (edits by hand, for reference runs); it finds ``recorder`` (whose
            dict ``record`` is kept) and ``rank``.
    """

    yaml: Path
    options: Sequence[str] = ()
    settings: Dict[str, str] = field(default_factory=dict)
    before: str = ""
    timeout: float = 60
    script: Path = recipes.TRAIN
    environ: Dict[str, str] = field(default_factory=dict)

    def plan(self, folder: Path) -> Dict[str, Any]:
        names = ("name", "settings", "before", "timeout", "environ")
        added = ["--device=cpu", "--distributed_backend=gloo"]
        if recipes.release() < Version("0.5.16"):
            added += ["--distributed_launch", "--local_rank=RANK"]
        options = [f"--output_folder={folder / self.name}", *self.options, *added]
        plan = {name: getattr(self, name) for name in names}
        return {**plan, "script": str(self.script), "arguments": [str(self.yaml), *options]}


@dataclass
class Result(results.Result):
    """What one rank saw of one scenario.

    Attributes:
        ddp: for each wrapped module its class and the flag.
        ran: for each training forward of each wrapped module, which of its layers ran.
    """

    ddp: List[Dict[str, Any]] = field(default_factory=list)
    batches: List[List[str]] = field(default_factory=list)
    ran: List[List[str]] = field(default_factory=list)
    steps: List[str] = field(default_factory=list)
    lr: List[float] = field(default_factory=list)


def train(
    scenarios: Sequence[Scenario],
    folder: Path,
    ddpfix: bool,
    size: int = 2,
    environ: Optional[Dict[str, str]] = None,
) -> Dict[str, List[Result]]:
    """Run scenarios one after the other on ``size`` ranks; returns the results by name, in the order of ranks."""
    whole = {**({"DDPFIX": "1"} if ddpfix else {}), **(environ or {})}
    return pool.results(RANK, scenarios, folder, size, whole, Result)
