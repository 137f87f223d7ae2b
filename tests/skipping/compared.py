"""What is asked of each toolkit whose layers are skipped: the failure first, then the same script with the fix."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Callable, Dict, List, Sequence

import pytest

from tests.skipping import built, stacks
from tests.skipping.stacks import FAILURE, Rank, Scenario
from tests.support import ranks

Found = Dict[str, List[Rank]]
# Switches off the fixes for models of any origin, so that a toolkit's own is what acts.
OF_ANY_ORIGIN = {f"{name}_layerdrop": "0" for name in ("torch", "transformers")}


def plans(models: str, names: Sequence[str], fix: str, others: Dict[str, str]) -> List[Scenario]:
    """The trainings of each model that the functions below compare.

    Args:
        models: the module of tests with the models.
        names: of the models.
        fix: the toolkit's own fix.
        others: settings of all trainings (:data:`OF_ANY_ORIGIN`).
    """
    found: List[Scenario] = []
    for name in names:
        found += [
            Scenario(f"plain {name}", models=models, model=name),
            Scenario(f"flag {name}", models=models, model=name, flag=True),
            Scenario(f"ours {name}", models=models, model=name, settings=others),
            Scenario(f"off {name}", models=models, model=name, settings={**others, "layerdrop": "off"}),
            Scenario(f"any {name}", models=models, model=name, settings={"transformers_layerdrop": "0"}),
            Scenario(f"switched {name}", models=models, model=name, settings={**others, fix: "0"}, flag=True),
        ]
    return found


def fails_without(found: Found, name: str) -> None:
    """Plain torch ends with its error, or, with the flag, skips other layers on each rank."""
    assert all(FAILURE in record["error"] for _, record in found[f"plain {name}"])
    skips_apart(found, f"flag {name}")


def skips_apart(found: Found, scenario: str) -> None:
    (log, first), (_, second) = found[scenario]
    assert first["error"] is None and second["error"] is None, log
    assert first["ran"] != second["ran"] and first["steps"] == second["steps"]


def skips_alike(found: Found, scenario: str, model: Callable[[], built.Built], layers: int) -> None:
    """Both ranks skip the same layers, and train what a process without DDP does with these layers."""
    (log, first), (_, second) = found[scenario]
    assert first["error"] is None and second["error"] is None, log
    assert first["ran"] == second["ran"] and first["steps"] == second["steps"]
    assert 0 < sum(layers - len(ran) for ran in first["ran"]) < built.STEPS * layers, first["ran"]
    built.seed(0)
    for ours, reference in zip(first["steps"], built.by_hand(model(), first["ran"], 2)):
        assert ours == pytest.approx(reference, rel=2e-5, abs=2e-6)


def skips_nothing(found: Found, name: str, layers: int) -> None:
    for log, record in found[f"off {name}"]:
        assert record["error"] is None, log
        assert [len(ran) for ran in record["ran"]] == [layers] * built.STEPS


def loads_nothing(module: str) -> None:
    """An import of the toolkit under ``DDPFIX=1`` loads what waking up loads, and nothing of its fixes."""
    toolkit = module.partition(".")[0]
    text = f"import sys, {module}; print('LOADED', [name for name in sys.modules if 'patches.{toolkit}' in name])"
    environ = ranks.with_release(ranks.environment({"DDPFIX": "1"}))
    code, output = ranks.run([sys.executable, "-W", "ignore", "-c", text], environ, Path.cwd(), 120)
    assert code == 0 and "LOADED []" in output, output


def trained(folder: Path, scenarios: Sequence[Scenario]) -> Found:
    return stacks.train(scenarios, folder)
