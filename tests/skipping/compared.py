"""What is asked of each toolkit whose layers are skipped: the failure first, then the same script with the fix."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import pytest

from tests.skipping import built, stacks
from tests.skipping.stacks import FAILURE, Rank, Scenario
from tests.support import ranks

Found = Dict[str, List[Rank]]
# Switches off the fixes for models of any origin, so that a toolkit's own is what acts.
OF_ANY_ORIGIN = {f"{name}_layerdrop": "0" for name in ("torch", "transformers")}


def suite(models: Any, names: Sequence[str], toolkit: str) -> Tuple[Any, Any, Any]:
    """The fixture ``found`` of a toolkit's file of tests, and its two tests of each model."""

    @pytest.fixture(scope="module", name="found")
    def made(tmp_path_factory: pytest.TempPathFactory) -> Found:
        return trained(tmp_path_factory.mktemp(toolkit), models, names, f"{toolkit}_layerdrop")

    @pytest.mark.parametrize("name", names)
    def plain(found: Found, name: str) -> None:
        fails_without(found, name)

    @pytest.mark.patches("torch.layerdrop")
    @pytest.mark.parametrize("name", names)
    def patched(found: Found, name: str) -> None:
        skips_alike(found, name, models)

    return made, plain, patched


def trained(folder: Path, models: Any, names: Sequence[str], fix: str) -> Found:
    """Train each model in all ways that the functions below compare."""
    plans: List[Scenario] = []
    for name in names:
        ways = {
            "plain": Scenario("plain"),
            "flag": Scenario("flag", flag=True),
            "ours": Scenario("ours", settings=OF_ANY_ORIGIN),
            "off": Scenario("off", settings={**OF_ANY_ORIGIN, "layerdrop": "off"}),
            "any": Scenario("any", settings={"transformers_layerdrop": "0"}),
            "switched": Scenario("switched", settings={**OF_ANY_ORIGIN, fix: "0"}, flag=True),
        }
        plans += [replace(way, name=f"{how} {name}", models=models.__name__, model=name) for how, way in ways.items()]
    return stacks.train(plans, folder)


def fails_without(found: Found, name: str) -> None:
    """Plain torch ends with its error; with the flag, or without the toolkit's fix, each rank skips other layers."""
    assert all(FAILURE in record["error"] for _, record in found[f"plain {name}"])
    for scenario in (f"flag {name}", f"switched {name}"):
        first, second = both(found, scenario)
        assert first["ran"] != second["ran"]


def both(found: Found, scenario: str) -> List[Dict[str, Any]]:
    """What two ranks found that ended well, and with the same parameters."""
    for log, record in found[scenario]:
        assert record["error"] is None, log
    records = [record for _, record in found[scenario]]
    assert records[0]["steps"] == records[1]["steps"]
    return records


def skips_alike(found: Found, name: str, models: Any) -> None:
    """Both ranks skip the same layers, and train what a process without DDP does with these layers.

    By the toolkit's fix, by that for any model, and with LayerDrop off; the generators advance as in plain torch.
    """
    for scenario in (f"ours {name}", f"any {name}", f"off {name}"):
        first, second = both(found, scenario)
        assert first["ran"] == second["ran"]
        skipped = sum(models.LAYERS - len(ran) for ran in first["ran"])
        if scenario.startswith("off"):
            assert skipped == 0
            continue
        assert 0 < skipped < built.STEPS * models.LAYERS, first["ran"]
        built.seed(0)
        for ours, reference in zip(first["steps"], built.by_hand(models.MODELS[name](), first["ran"], 2)):
            assert ours == pytest.approx(reference, rel=2e-5, abs=2e-6)
    streams = [[record["streams"] for record in both(found, f"{kind} {name}")] for kind in ("flag", "ours")]
    assert streams[0] == streams[1]


def loads_nothing(module: str) -> None:
    """An import of the toolkit under ``DDPFIX=1`` loads what waking up loads, and nothing of its fixes."""
    toolkit = module.partition(".")[0]
    text = f"import sys, {module}; print('LOADED', [name for name in sys.modules if 'patches.{toolkit}' in name])"
    environ = ranks.with_release(ranks.environment({"DDPFIX": "1"}))
    code, output = ranks.run([sys.executable, "-W", "ignore", "-c", text], environ, Path.cwd(), 120)
    assert code == 0 and "LOADED []" in output, output
