"""Undone, fastNLP is what it was; and metadata, not ``fastNLP.__version__``, says which release it is."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Dict, Iterator, Tuple

import pytest

import ddpfix
from tests.fastnlp import releases
from tests.support import undo

pytestmark = pytest.mark.filterwarnings("ignore")
DRIVER = "fastNLP.core.drivers.torch_driver.ddp:TorchDDPDriver"
# Each touched attribute, copies by from-import among them.
TOUCHED: Tuple[str, ...] = ()
if releases.has_drivers():
    TOUCHED = (
        *(f"{DRIVER}.{name}" for name in ("__init__", "setup", "configure_ddp", "on_exception")),
        "fastNLP.core.drivers.torch_driver.ddp:distributed_open_proc",
        "fastNLP.core.drivers.choose_driver:choose_driver",
        "fastNLP.core.controllers.trainer:choose_driver",
        "fastNLP.core.controllers.evaluator:choose_driver",
        "fastNLP.core.controllers.trainer:Trainer.run",
        "fastNLP.transformers.torch.models.bart.modeling_bart:BartEncoder.forward",
        "fastNLP.transformers.torch.models.bart.modeling_bart:BartDecoder.forward",
        "fastNLP.transformers.torch.models.cpt.modeling_cpt:CPTDecoder.forward",
    )
elif releases.release().release >= (0, 7):
    TOUCHED = ("fastNLP.core.dist_trainer:DistTrainer.__init__",)


@pytest.fixture
def clean() -> Iterator[None]:
    ddpfix.deactivate()
    yield
    ddpfix.deactivate()


def held(place: str) -> Any:
    module, _, path = place.partition(":")
    owner: Any = import_module(module)
    *parts, last = path.split(".")
    for part in parts:
        owner = getattr(owner, part)
    return vars(owner)[last]


def all_held() -> Dict[str, Any]:
    return {place: held(place) for place in TOUCHED}


def test_undo_leaves_nothing(clean: None) -> None:
    before, hook = all_held(), sys.excepthook
    for _ in range(2):
        ddpfix.activate()
        assert [place for place, value in all_held().items() if value is before[place]] == []
        assert ddpfix.deactivate() == []
        assert [place for place, value in all_held().items() if value is not before[place]] == []
    assert sys.excepthook is hook


@pytest.mark.skipif(not releases.has_drivers(), reason="one patch at most is for these releases; see the test above")
def test_everything_else_is_what_it_was(clean: None) -> None:
    undo.check("fastNLP")


def test_metadata_tells_the_release(clean: None) -> None:
    report = ddpfix.activate()
    assert report.toolkits["fastNLP"] == str(releases.release())
    entries = [entry for entry in report.patches if entry.toolkit == "fastNLP"]
    assert {entry.state for entry in entries} <= {"applied", "registered", "armed", "not-affected", "off"}
    assert all(entry.tested for entry in entries)


def test_each_patch_has_a_switch(clean: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDPFIX_FASTNLP_UNUSED", "0")
    assert ddpfix.activate().patch("fastnlp.unused").state == "off"
