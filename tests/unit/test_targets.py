"""The targets in the matrix are what the patches really change: on the real torch, transformers and accelerate.

The toolkits with environments of their own are looked at in their folders, by ``tests.support.undo.check``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Dict, Iterator

import pytest

import ddpfix
from ddpfix import engine
from ddpfix.patching.site import Site
from tests.support import undo

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def sites() -> Iterator[Dict[str, Site]]:
    ddpfix.deactivate()
    ddpfix.activate(log="warning")
    undo.imported(["torch", *undo.targets("torch")])
    undo.open_gate()
    current = engine.current()
    assert current is not None
    yield current.sites
    ddpfix.deactivate()


@pytest.mark.parametrize("toolkit", ["torch", "transformers", "accelerate"])
def test_the_matrix_lists_what_is_changed(sites: Dict[str, Site], toolkit: str) -> None:
    undo.imported(undo.targets(toolkit))
    import_module("transformers.models.wav2vec2.modeling_wav2vec2")
    assert undo.differences(toolkit) == []


def test_a_place_that_is_not_listed_is_found(sites: Dict[str, Site]) -> None:
    module = import_module("torch.utils.checkpoint")
    sites["torch.reentrant"].wrap(module, "checkpoint", lambda wrapped, _, args, kwargs: wrapped(*args, **kwargs))
    assert undo.differences("torch") == [
        "torch.reentrant changes torch.utils.checkpoint:checkpoint, which the matrix does not list"
    ]


def test_a_target_at_which_nothing_is_done_is_found(sites: Dict[str, Site]) -> None:
    records = sites["torch.fsdp"].records
    while records:
        records.pop().undo([])
    wrapper = "torch.distributed.fsdp.fully_sharded_data_parallel:FullyShardedDataParallel.forward"
    function = "torch.distributed.fsdp._fully_shard._fully_shard:fully_shard"
    said = [f"torch.fsdp does nothing at {place}, which the matrix lists" for place in (wrapper, function)]
    assert sorted(undo.differences("torch")) == sorted(said)


def test_everything_is_what_it_was_once_undone() -> None:
    undo.check("torch")
