"""One room knows accelerators; what it asks of torch's module for a kind, and that nothing else names one."""

from __future__ import annotations

import ast
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Iterator, List, Tuple

import pytest
import torch

from ddpfix import devices
from ddpfix.exchange import roll_call
from ddpfix.groups import timeouts
from tests.support.rooms import FILES

# Files that name CUDA, and why: they read what a person or a toolkit has written, or ask NVIDIA's own parts.
NAME_CUDA: Dict[str, str] = {
    "ddpfix.devices": "the room",
    "ddpfix.layerdrop.numbers": "names of methods and attributes in the source of a model",
    "ddpfix.settings.gone": "the name of a setting, after a toolkit's",
    "ddpfix.cli.doctor.ranks": "ranks that have NVIDIA's GPUs, over NCCL, and the version that torch was built for",
    "ddpfix.cli.doctor.examination": "the versions that torch was built for",
    "ddpfix.patches.funasr.cpu": "FunASR's trainers call torch.cuda, which is replaced there",
    "ddpfix.patches.funasr.flag": "the default of a setting of FunASR",
    "ddpfix.patches.funasr.precision": "torch's gradient scaler, where a release has no other name for it",
    "ddpfix.patches.speechbrain.device": "values of an option of SpeechBrain",
    "ddpfix.patches.speechbrain.precision": "values of an option of SpeechBrain",
    "ddpfix.patches.speechbrain.probe": "values of an option of SpeechBrain",
    "ddpfix.patches.torch.probe": "which backend a program's init_process_group can have without a GPU",
    "ddpfix.patches.wenet.unused": "the name of a function of WeNet",
}


def named(path: Path) -> List[str]:
    """The names, attributes and texts with "cuda" in a file, without docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: List[str] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    for node in ast.walk(tree):
        values = [getattr(node, name, None) for name in ("id", "attr", "arg", "name", "value")]
        found += [value for value in values if isinstance(value, str) and "cuda" in value]
    return found


def test_accelerators_are_named_in_one_room() -> None:
    assert sorted(name for name, path in FILES.items() if named(path)) == sorted(NAME_CUDA)


class Vendor:
    """torch's module for a kind of accelerators, as a vendor's package adds it; it records what it is asked.

    Args:
        without: functions that it lacks.
    """

    def __init__(self, without: Tuple[str, ...] = ()) -> None:
        self.asked: List[Tuple[Any, ...]] = []
        functions = {
            "is_initialized": True,
            "is_current_stream_capturing": True,
            "max_memory_allocated": 5,
            "memory_reserved": 7,
            "memory_allocated": 4,
            "get_device_properties": SimpleNamespace(total_memory=9),
            "current_stream": "a stream",
            "get_rng_state_all": ["a state"],
            "set_rng_state_all": None,
        }
        for name, value in functions.items():
            if name not in without:
                setattr(self, name, self._function(name, value))

    def _function(self, name: str, value: Any) -> Any:
        def asked(*given: Any) -> Any:
            self.asked.append((name, *given))
            return value

        return asked

    def Event(self, enable_timing: bool) -> Any:
        return SimpleNamespace(record=lambda *stream: self.asked.append(("record", *stream)), timed=enable_timing)


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Vendor]:
    made = Vendor()
    monkeypatch.setattr(torch, "npu", made, raising=False)
    yield made


DEVICE = SimpleNamespace(type="npu", index=3)
HOST = torch.device("cpu")


def test_a_device_is_asked_for_itself_and_not_for_the_current_one(vendor: Vendor) -> None:
    assert devices.peak_memory(DEVICE) == 5 and devices.reserved_memory(DEVICE) == 7
    assert devices.total_memory(DEVICE) == 9 and devices.used_memory(DEVICE) == 4
    assert devices.event(DEVICE, timed=True).timed
    given = [call[1:] for call in vendor.asked]
    assert given == [(DEVICE,)] * 5 + [("a stream",)]


def test_of_the_host_nothing_is_asked() -> None:
    assert not devices.is_accelerator(HOST) and devices.is_accelerator(DEVICE)
    assert devices.peak_memory(HOST) is devices.reserved_memory(HOST) is devices.total_memory(HOST) is None


def test_a_number_that_a_kind_does_not_give_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "npu", Vendor(("max_memory_allocated", "get_device_properties")), raising=False)
    assert devices.peak_memory(DEVICE) is None and devices.total_memory(DEVICE) is None
    assert devices.peak_memory(SimpleNamespace(type="vendor")) is None
    assert devices.event(SimpleNamespace(type="vendor")) is None


def test_what_is_in_use_and_what_is_captured(vendor: Vendor, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "npu" in devices.in_use() and devices.is_capturing()
    monkeypatch.setattr(vendor, "is_initialized", lambda: False)
    assert "npu" not in devices.in_use() and not devices.is_capturing()


def test_random_states_are_given_back(vendor: Vendor) -> None:
    for restore in devices.random_states():
        restore()
    assert ("set_rng_state_all", ["a state"]) in vendor.asked


def test_the_functions_of_mps_take_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: List[Tuple[Any, ...]] = []
    monkeypatch.setattr(torch.mps, "current_stream", lambda *given: calls.append(given), raising=False)
    assert devices.current_stream(SimpleNamespace(type="mps", index=0)) == "None"
    assert calls == [()]
    assert devices.peak_memory(SimpleNamespace(type="mps", index=0)) is None


class Group:
    """A process group with one backend, for one kind of device, as torch keeps it."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.backend = SimpleNamespace(options=SimpleNamespace(_timeout=timedelta(seconds=300)))

    def _get_backend(self, device: Any) -> Any:
        if device.type != self._kind:
            raise RuntimeError(f"no backend for {device.type}")
        return self.backend


@pytest.mark.parametrize("kind", ["cpu", "cuda", "xpu", "hpu", "mps"])
def test_the_limit_of_a_group_is_that_of_its_own_backend(kind: str) -> None:
    assert timeouts.shortest(Group(kind)) == 300
    # Ranks are waited for half as long: the cause is reported before the collectives give up.
    assert (roll_call.limit_of(Group(kind)), roll_call.limit_of(Group(kind), 60)) == (150, 60)
