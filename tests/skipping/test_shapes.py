"""LayerDrop in models of any origin, on two real ranks: shared or named where it is for layers, untouched elsewhere."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest
import torch
from torch.torch_version import TorchVersion

from tests.skipping import others, rank, shapes
from tests.skipping.rank import Scenario

pytestmark = pytest.mark.patches("torch.layerdrop")
# What cannot be proved, with the reason that is given; all others are shared.
NOT_UNIFORM = "ddpfix cannot prove that it draws one uniform number for each layer"
OTHER = "it compares the number that it draws with something other than a rate of the module"
NAMED = {
    "Mask": NOT_UNIFORM,
    "Kept": NOT_UNIFORM,
    "While": NOT_UNIFORM,
    "Survival": OTHER,
    "ByData": OTHER,
    "TensorRate": "its rate, self.rate, is a tensor",
    "Bookkeeping": "it compares the number that it draws a second time",
    "ClosedRate": "its rate, self.schedule, is a property",
    "CountedList": "its layers, self.blocks, are a property",
}
SHARED = [kind.__name__ for kind in shapes.ALL if kind.__name__ not in NAMED]
# A generator that no seed reaches gives other numbers in each run.
UNSEEDED = ("NumpyGenerator",)
# Under FSDP and ``fully_shard``, layer by layer.
ONLY = ("Item", "Numpy", "EmptyVector", "Blocks")
Found = Dict[str, List[Dict[str, Any]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What both ranks found in each scenario. The fix of transformers, which covers models of others, is off."""
    ours = {"transformers_layerdrop": "0"}
    plans = []
    for file in ("shapes", "others"):
        plans += [Scenario(f"plain {file}", file=file), Scenario(f"ours {file}", file=file, settings=ours)]
    plans += [
        Scenario("off", settings={**ours, "layerdrop": "off"}),
        Scenario("stock", settings={**ours, "layerdrop": "stock"}),
        Scenario("switched off", settings={**ours, "torch_layerdrop": "0"}),
    ]
    return rank.train(plans, tmp_path_factory.mktemp("skipping"))


def of(found: Found, scenario: str, name: str) -> List[Dict[str, Any]]:
    return [record[name] for record in found[scenario]]


def trained(record: Dict[str, Any]) -> Dict[str, Any]:
    """All that a class computed, without what was said of it."""
    return {word: value for word, value in record.items() if word != "lines"}


@pytest.mark.parametrize("name", [kind.__name__ for kind in shapes.ALL])
def test_plain_torch_skips_other_layers_on_each_rank(found: Found, name: str) -> None:
    first, second = of(found, "plain shapes", name)
    assert sum(one != other for one, other in zip(first["ran"], second["ran"])) >= 3


@pytest.mark.parametrize("name", SHARED)
def test_all_ranks_skip_the_same_layers_in_each_step(found: Found, name: str) -> None:
    first, second = of(found, "ours shapes", name)
    assert first["ran"] == second["ran"] and first["steps"] == second["steps"]
    assert 8 <= sum(shapes.LAYERS - len(ran) for ran in first["ran"]) <= 40
    # Every other draw is the rank's own, and all generators advance as in plain torch.
    assert name in UNSEEDED or [each["streams"] for each in (first, second)] == [
        each["streams"] for each in of(found, "plain shapes", name)
    ]
    assert sum("all ranks skip the same layers of" in line for line in first["lines"]) == 1, first["lines"]
    assert not any("ranks may skip different layers" in line for line in first["lines"] + second["lines"])


@pytest.mark.parametrize("name", NAMED)
def test_what_cannot_be_proved_is_named_and_left_alone(found: Found, name: str) -> None:
    records, plain = of(found, "ours shapes", name), of(found, "plain shapes", name)
    assert list(map(trained, records)) == list(map(trained, plain))
    lines = [each for each in records[0]["lines"] if "ranks may skip different layers of " in each]
    assert len(lines) == 1 and f"shapes.{name}: " in lines[0] and NAMED[name] in lines[0]
    assert "shapes.py:" in lines[0]


@pytest.mark.parametrize("name", [kind.__name__ for kind in others.ALL])
def test_draws_for_other_things_stay_each_ranks_own(found: Found, name: str) -> None:
    records, plain = of(found, "ours others", name), of(found, "plain others", name)
    assert list(map(trained, records)) == list(map(trained, plain))
    assert not [line for record in records for line in record["lines"] if "layers" in line], records


@pytest.mark.patches("torch.layerdrop")
@pytest.mark.parametrize("name", SHARED)
def test_off_skips_no_layer(found: Found, name: str) -> None:
    for record in of(found, "off", name):
        assert all(len(ran) == shapes.LAYERS for ran in record["ran"])


@pytest.mark.parametrize("scenario", ["stock", "switched off"])
@pytest.mark.parametrize("name", SHARED)
def test_stock_and_the_switch_leave_all_as_shipped(found: Found, scenario: str, name: str) -> None:
    if name not in UNSEEDED:
        plain = of(found, "plain shapes", name)
        assert list(map(trained, of(found, scenario, name))) == list(map(trained, plain))


@pytest.mark.skipif(TorchVersion(torch.__version__) < (2, 6), reason="torch.fsdp is not cured there")
@pytest.mark.parametrize("wrapper", ["fsdp", "fully_shard"])
def test_ranks_gather_and_skip_the_same_layers(wrapper: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Ranks that skip different layers wait for each other in plain torch."""
    ours = {"transformers_layerdrop": "0"}
    plan = Scenario(wrapper, settings=ours, wrapper=wrapper, only=ONLY)
    first, second = rank.train([plan], tmp_path_factory.mktemp("sharded"))[wrapper]
    for name in ONLY:
        assert first[name]["ran"] == second[name]["ran"], name
        assert 8 <= sum(shapes.LAYERS - len(ran) for ran in first[name]["ran"]) <= 40, name
        assert first[name]["losses"] != second[name]["losses"]
