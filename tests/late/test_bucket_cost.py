"""How layers share buckets follows from what collectives cost."""

from __future__ import annotations

from typing import Any, Dict, List, Set

import pytest
from ddpfix.patches.torch.buckets import cost, layout
from ddpfix.patches.torch.buckets.cost import Costs, Plan
from ddpfix.patches.torch.buckets.window import droppable

from tests.benchmarks.mode_child import Encoder

pytestmark = pytest.mark.patches("torch.aligned")

WIDTH, DEPTH = 64, 12
# Bytes of one layer of the encoder.
LAYER = 12 * WIDTH * WIDTH * 4
MEGABYTE = 1 << 20
# A loopback: a tenth of a millisecond for a collective, a gigabyte a second; a hook costs a pass over the gradients.
LOOPBACK = Costs(collective=1e-4, byte=1e-9, launch=3e-5, copy=1e-10)


def planned(rate: float, cap: float, costs: Costs, hooked: bool = False) -> Plan:
    """``cap`` in sizes of a layer."""
    return cost.plan(Encoder(rate, WIDTH, DEPTH), int(cap * LAYER), costs, hooked)


def per_layer(bytes_a_layer: float, costs: Costs) -> Costs:
    """The same costs for layers of another size."""
    scale = bytes_a_layer / LAYER
    return Costs(costs.collective, costs.byte * scale, costs.launch, costs.copy * scale)


@pytest.mark.parametrize(("rate", "share"), [(0.5, 0.5), (0.1, 0.1)])
def test_where_collectives_cost_nothing_each_layer_has_its_own(rate: float, share: float) -> None:
    plan = planned(rate, 25.0, Costs(0.0, 1e-9, 0.0, 0.0))
    assert plan.together == 1
    assert plan.share == pytest.approx(share, rel=0.1)


def test_where_bytes_cost_nothing_buckets_stay() -> None:
    assert planned(0.5, 1.0, Costs(1e-4, 0.0, 1e-5, 0.0)) == cost.NOTHING


def test_the_layers_of_wavlm_base_at_rate_one_half() -> None:
    """7 MB each, a quarter of DDP's limit: by the limit alone four of them shared a bucket, and nothing was saved."""
    plan = planned(0.5, 25 * MEGABYTE / (7 * MEGABYTE), per_layer(7 * MEGABYTE, LOOPBACK))
    assert plan.together == 1
    assert plan.gain > 0.02


def test_a_crossover_from_alone_to_together_to_not_at_all() -> None:
    """The dearer one more collective is beside the bytes, the more layers share a bucket, until none is worth it."""
    plans = [planned(0.8, 100.0, Costs(collective, 1e-9, 0.0, 0.0)) for collective in (1e-6, 1e-4, 1e-2)]
    assert [each.together for each in plans] == [1, 2, 0]
    gains = [each.gain for each in plans]
    assert gains == sorted(gains, reverse=True)


def test_a_hook_that_costs_more_than_it_saves_is_not_registered() -> None:
    dear = Costs(0.0, 1e-9, 0.0, 2e-10)
    assert planned(0.1, 1.0, dear) == cost.NOTHING
    # The user's own hook costs that already.
    assert planned(0.1, 1.0, dear, hooked=True).together == 1


def test_without_layerdrop_nothing_is_planned() -> None:
    assert planned(0.0, 1.0, LOOPBACK) == cost.NOTHING


@pytest.mark.parametrize("together", [1, 2, 3])
def test_a_first_layer_that_is_a_little_larger_does_not_merge_the_others(together: int) -> None:
    """WavLM's holds the embedding of positions for all of them, so every other one is below the mean."""
    transformers = pytest.importorskip("transformers", reason="WavLM is transformers'")
    import ddpfix

    config = transformers.WavLMConfig(
        hidden_size=96, intermediate_size=192, num_attention_heads=12, num_hidden_layers=12, layerdrop=0.5
    )
    ddpfix.activate(log="off")
    try:
        model = transformers.WavLMModel(config).train()
        layers = droppable(model, None, id)
        sizes = {id(p): p.numel() * p.element_size() for p in model.parameters()}
        least = sum(sizes[n] for own in layers.values() for n in own) / len(layers) * together
        tensors = [p for p in model.parameters() if p.requires_grad]
        runs = [run for run in layout._runs(tensors, model, least) if id(tensors[run[0]]) in _all(layers)]
    finally:
        ddpfix.deactivate()
    assert len({len(own) for own in layers.values()}) == 2, "the first layer has as many parameters as the others"
    assert len(runs) == 12 // together


def _all(layers: Dict[Any, List[int]]) -> Set[int]:
    return {number for own in layers.values() for number in own}
