"""Two forwards before one backward, of a model with buffers (pytorch issue 22095)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest
import torch
from ddpfix.patches.torch.forwards import buffers
from ddpfix.patches.torch.pipeline import ddp
from packaging.version import Version
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpfix.patching.site import Site
from tests.late import past_calls
from tests.late.launch import Ranks, Scenario, ends, steps
from tests.late.one_rank import alone, undone  # noqa: F401
from tests.support import host_reads

pytestmark = pytest.mark.patches("torch.buffers")
REST = pytest.mark.sampled(inside=False, cells=True)
# From here on torch hides what its broadcast writes by itself.
MENDED = Version(torch.__version__) >= Version("2.12")
REFUSED = "has been modified by an inplace operation"
EXACT = ("statistics", "instances", "table", "evaluated")
# The backward reads what has changed since: torch's error stays.
CHANGED = ("moving", "parted", "own_normalization")


def plans(folder: Path) -> List[Scenario]:
    names = {name: f"past_calls:{name}" for name in (*EXACT, *CHANGED)}
    plans = [Scenario(f"plain-{name}", function=function) for name, function in names.items()]
    plans += [Scenario(name, function=function, settings={}) for name, function in names.items()]
    plans += [Scenario("off", function=names["table"], settings={"torch_buffers": "0"})]
    plans += [Scenario("find", function=names["statistics"], settings={"unused": "find"})]
    return plans


def trained(ranks: Ranks) -> None:
    """Both ranks have what the reference has."""
    weights, others = steps(ranks, "weights")
    assert weights == others and len(weights) == past_calls.STEPS
    for step, expected in zip(weights, steps(ranks, "expected")[0]):
        assert step == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", EXACT)
@REST
def test_plain_torch_refuses_unless_it_is_mended(outcomes: Dict[str, Ranks], name: str) -> None:
    if MENDED:
        trained(outcomes[f"plain-{name}"])
    else:
        assert all(REFUSED in end for end in ends(outcomes[f"plain-{name}"])), outcomes[f"plain-{name}"]


@pytest.mark.parametrize("name", [*EXACT, "find"])
@REST
def test_what_no_gradient_depends_on_is_hidden(outcomes: Dict[str, Ranks], name: str) -> None:
    trained(outcomes[name])


@pytest.mark.parametrize("name", CHANGED)
@REST
def test_what_a_gradient_depends_on_ends_as_in_plain_torch(outcomes: Dict[str, Ranks], name: str) -> None:
    if MENDED:
        assert [REFUSED in end for end in ends(outcomes[name])] == [
            REFUSED in end for end in ends(outcomes[f"plain-{name}"])
        ]
        return
    assert all(REFUSED in end for end in ends(outcomes[f"plain-{name}"])), outcomes[f"plain-{name}"]
    found = ends(outcomes[name])
    assert all(found) and REFUSED in found[1], outcomes[name]
    # No rank has used a gradient.
    assert [record["weights"] for _, record in outcomes[name] if record is not None] == [[], []]


@REST
def test_switched_off_it_is_plain_torch(outcomes: Dict[str, Ranks]) -> None:
    assert [REFUSED in end for end in ends(outcomes["off"])] == [not MENDED, not MENDED]


# In one process, with the broadcast of releases before 2.13, on every torch that can be told a version.


def _old_broadcast(self: Any) -> None:
    with torch.no_grad():
        self._assign_modules_buffers()
        for buffer in self.modules_buffers:
            buffer.copy_(buffer.clone())


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(DistributedDataParallel, "_sync_buffers", _old_broadcast)
    # As on a rank that takes another one's buffers.
    monkeypatch.setattr(buffers.private, "sends_buffers", lambda wrapper: False)
    site = Site("test", {})
    buffers.stage(site, torch.nn.parallel.distributed, DistributedDataParallel)
    buffers.broadcast(site, torch.nn.parallel.distributed, DistributedDataParallel)
    yield DistributedDataParallel(past_calls.Scaled(nn.BatchNorm1d(4)))
    assert site.undo() == []
    assert vars(DistributedDataParallel)["_sync_buffers"] is _old_broadcast


def versions(model: Any) -> List[int]:
    return [buffer._version for buffer in model.module.buffers()]


def test_a_broadcast_is_hidden_only_while_a_forward_waits(model: Any) -> None:
    outputs = []
    # At first nothing waits: one write each by the broadcast, and the counter of batches by the forward.
    for written in ([1, 1, 1, 2], [0, 0, 0, 1], [1, 1, 1, 2]):
        before = versions(model)
        outputs.append(model(torch.ones(2, 4)).sum())
        assert [after - old for old, after in zip(before, versions(model))] == written
        if len(outputs) == 2:
            sum(outputs).backward()


def test_a_forward_whose_output_is_dropped_waits_for_nothing(model: Any) -> None:
    model(torch.ones(2, 4))
    forwards = buffers.FORWARDS.of(ddp.of(model))
    assert forwards is not None and forwards.waiting() == []


def test_buffers_that_share_a_version_are_hidden_together_or_not(model: Any) -> None:
    whole = torch.zeros(4)
    shared = [whole[:2], whole[2:]]
    model.module.register_buffer("one", shared[0])
    model.module.register_buffer("other", shared[1])
    held = buffers.held(model, frozenset())
    before = whole._version
    with torch.no_grad():
        shared[0].copy_(torch.zeros(2))
        shared[1].copy_(torch.ones(2))
    buffers.hide(held)
    assert whole._version == before + 2


@pytest.mark.parametrize(("sends", "reads"), [(False, 1), (True, 0)])
def test_however_many_buffers_there_are_the_host_waits_once(
    model: Any, monkeypatch: pytest.MonkeyPatch, sends: bool, reads: int
) -> None:
    """A wait for a GPU each; the rank whose buffers are broadcast needs none."""
    for number in range(12):
        model.module.register_buffer(f"buffer_{number}", torch.full((4,), float("nan") if number == 5 else 1.0))
    monkeypatch.setattr(buffers.private, "sends_buffers", lambda wrapper: sends)
    held = buffers.held(model, frozenset())
    before = versions(model)
    with torch.no_grad():
        for buffer in model.module.buffers():
            buffer.copy_(buffer.clone())
        if not sends:
            model.module.buffer_7.add_(1)
    with host_reads.counted() as found:
        buffers.hide(held)
    assert sum(found.values()) == reads
    # The table comes first.
    changed = [number for number, pair in enumerate(zip(before, versions(model))) if pair[0] != pair[1]]
    assert changed == ([] if sends else [1 + 7])


def test_the_release_that_hides_by_itself_is_left_alone() -> None:
    site = Site("test", {})
    original = vars(DistributedDataParallel)["_sync_buffers"]
    buffers.stage(site, torch.nn.parallel.distributed, DistributedDataParallel)
    buffers.broadcast(site, torch.nn.parallel.distributed, DistributedDataParallel)
    assert (site.changes() == 0) is MENDED
    assert (vars(DistributedDataParallel)["_sync_buffers"] is original) is MENDED
    assert site.undo() == []
