"""torch.compile of a model that skips layers: right results, and a bounded number of further graphs."""

from __future__ import annotations

import importlib
from typing import Any, Iterator, List, Tuple

import pytest
import torch
from ddpfix.patches.common import layerdrop
from packaging.version import Version

from ddpfix.layerdrop import training
from ddpfix.patching.site import Site
from tests.support import zoo

pytestmark = [
    pytest.mark.patches("transformers.layerdrop"),
    pytest.mark.skipif(
        Version(torch.__version__) < Version("2.1"), reason="torch.compile of 2.0 does not trace these models"
    ),
]


@pytest.fixture
def site() -> Iterator[Site]:
    torch._dynamo.reset()
    made = Site("test")
    yield made
    made.undo()
    torch._dynamo.reset()


class Counting:
    """A compiler backend that runs graphs as they are and counts them."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        return graph.forward


def patched(site: Site, name: str) -> zoo.TinyModel:
    entry = zoo.tiny_model(name)
    entry.build()
    layerdrop.in_modules(site, importlib.import_module(entry.module()), None)
    return entry


def steps(entry: zoo.TinyModel, model: torch.nn.Module, run: Any, count: int) -> Tuple[List[torch.Tensor], List[Any]]:
    replica = training.Replica(model, 7)
    losses, skips = [], []
    for index in range(count):
        model.zero_grad(set_to_none=True)
        with training.step(replica) as step:
            loss = entry.loss(run(**entry.batch(index)))
        loss.backward()
        losses.append(loss.detach())
        skips.append(tuple((skip.module, skip.layer) for skip in step.skipped))
    return losses, skips


@pytest.mark.parametrize("name", ("wav2vec2", pytest.param("bart", marks=pytest.mark.sampled(inside=False))))
def test_whole_model(site: Site, name: str) -> None:
    entry = zoo.tiny_model(name)
    unpatched = Counting()
    model = entry.build()
    steps(entry, model, torch.compile(model, backend=unpatched), 12)
    torch._dynamo.reset()
    patched(site, name)
    model, same = entry.build(), entry.build()
    expected, patterns = steps(entry, same, same, 12)
    backend = Counting()
    losses, skips = steps(entry, model, torch.compile(model, backend=backend), 12)
    assert len(set(patterns)) > 4
    assert skips == patterns
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-4)
    # A skipped layer makes no new graph: the unpatched model also breaks at every draw, and compiles each layer once.
    assert backend.graphs <= unpatched.graphs + 2, (backend.graphs, unpatched.graphs)


@pytest.mark.parametrize("name", ("wav2vec2", pytest.param("bart", marks=pytest.mark.sampled(inside=False))))
def test_each_layer(site: Site, name: str) -> None:
    entry = patched(site, name)
    model, same = entry.build(), entry.build()
    expected, patterns = steps(entry, same, same, 12)
    backend = Counting()
    for part, module in model.named_modules():
        if part.split(".")[-1].isdigit() and part.split(".")[-2] == "layers":
            module.compile(backend=backend, fullgraph=True)
    # All layers share the code of Module.__call__, and each one is a variant of it: more than torch's default of 8.
    limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
    with torch._dynamo.config.patch({limit: 64}):
        losses, skips = steps(entry, model, model, 12)
    assert skips == patterns
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-4)
    assert 0 < backend.graphs <= 16, backend.graphs


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("wav2vec2", 0.5),
        pytest.param("bart", 0.5, marks=pytest.mark.sampled(inside=False, cells=True)),
        # It trains, at a rate of 0.
        ("bart", 0.0),
    ],
)
def test_evaluation_and_rate_zero_are_one_graph_as_unpatched(site: Site, name: str, rate: float) -> None:
    entry = zoo.tiny_model(name)
    model = entry.build(rate=rate).train(mode=not rate)
    backend = Counting()
    try:
        expected = torch.compile(model, backend=backend, fullgraph=True)(**entry.batch())
    except torch._dynamo.exc.Unsupported:
        pytest.skip("the unpatched model cannot be compiled as one graph on this release")
    graphs = backend.graphs
    torch._dynamo.reset()
    patched(site, name)
    output = torch.compile(model, backend=backend, fullgraph=True)(**entry.batch())
    assert backend.graphs == 2 * graphs
    assert torch.equal(entry.loss(output), entry.loss(expected))
