"""Runs recipes of SpeechBrain on real ranks, unpatched or under ddpfix, and collects what the ranks saw."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Sequence

from packaging.version import Version

from tests.speechbrain import recipes
from tests.support import pool, results, scenario

RANK = Path(__file__).with_name("rank.py")


@dataclass
class Scenario(scenario.Scenario):
    """One training run."""

    yaml: Path  # path of the hyperparameters (see :mod:`tests.speechbrain.recipes`)
    # What a user types behind it. ``--device=cpu`` and gloo are added, and before 0.5.16 what makes a release train on
    # several processes.
    options: Sequence[str] = ()
    # Arguments of ``ddpfix.activate`` in the child; in an unpatched launch they switch ddpfix on, late.
    settings: Dict[str, str] = field(default_factory=dict)
    # Python code run just before the recipe (edits by hand, for reference runs); it finds ``recorder`` (whose dict
    # ``record`` is kept) and ``rank``.
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
    """What one rank saw of one scenario."""

    ddp: List[Dict[str, Any]] = field(default_factory=list)  # for each wrapped module its class and the flag
    batches: List[List[str]] = field(default_factory=list)
    # For each training forward of each wrapped module, which of its layers ran.
    ran: List[List[str]] = field(default_factory=list)
    steps: List[str] = field(default_factory=list)
    lr: List[float] = field(default_factory=list)


def train(scenarios: Sequence[Scenario], folder: Path, ddpfix: bool) -> Dict[str, List[Result]]:
    """Run scenarios one after the other on two ranks; returns the results by name, in the order of ranks."""
    return pool.results(RANK, scenarios, folder, 2, {"DDPFIX": "1"} if ddpfix else {}, Result)
