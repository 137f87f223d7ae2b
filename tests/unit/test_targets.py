"""The targets in the matrix are what the patches really change: on the real torch, transformers and accelerate.

The toolkits with environments of their own are looked at in their folders, by ``tests.support.undo.check``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Iterator

import pytest

import ddpfix
from tests.support import targets, undo

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def active() -> Iterator[None]:
    ddpfix.deactivate()
    ddpfix.activate(log="warning")
    undo.imported(["torch"])
    undo.open_gate()
    yield
    ddpfix.deactivate()


@pytest.mark.parametrize("toolkit", ["torch", "transformers", "accelerate"])
def test_the_matrix_lists_what_is_changed(active: None, toolkit: str) -> None:
    undo.imported(undo.targets(toolkit))
    import_module("transformers.models.wav2vec2.modeling_wav2vec2")
    assert targets.differences(toolkit) == []


def test_a_place_that_is_not_listed_is_found(active: None) -> None:
    from ddpfix import engine

    undo.imported(undo.targets("torch"))
    current = engine.current()
    assert current is not None
    site = current.sites["torch.reentrant"]
    site.wrap(
        import_module("torch.utils.checkpoint"), "checkpoint", lambda wrapped, _, args, kwargs: wrapped(*args, **kwargs)
    )
    assert targets.differences("torch") == [
        "torch.reentrant changes torch.utils.checkpoint:checkpoint, which the matrix does not list"
    ]


def test_a_target_at_which_nothing_is_done_is_found(active: None) -> None:
    from ddpfix import engine

    undo.imported(undo.targets("torch"))
    current = engine.current()
    assert current is not None
    records = current.sites["torch.fsdp"].records
    while records:
        records.pop().undo([])
    wrapper = "torch.distributed.fsdp.fully_sharded_data_parallel:FullyShardedDataParallel.forward"
    function = "torch.distributed.fsdp._fully_shard._fully_shard:fully_shard"
    said = [f"torch.fsdp does nothing at {place}, which the matrix lists" for place in (wrapper, function)]
    assert sorted(targets.differences("torch")) == sorted(said)
