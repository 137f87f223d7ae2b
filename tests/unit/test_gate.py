"""Patches that wait at a gate: behind its doors when it opens, once, and nothing is left of them after undo."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any, Callable, Iterator, List

import pytest
import wrapt

from ddpfix import log
from ddpfix.patching.gate import Gate
from ddpfix.patching.layers import CHANGES
from ddpfix.patching.site import Site

Layer = Callable[..., List[str]]


class Kit(ModuleType):
    """A toolkit: a function, a class, and a module that has taken the function."""

    function: Layer
    Model: Any


@pytest.fixture
def kit(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kit]:
    made, user = Kit("gated_kit"), ModuleType("gated_user")
    code = "def function(): return ['original']\nclass Model:\n    def __init__(self, said): said.append('original')\n"
    exec(code, made.__dict__)
    user.__dict__["taken"] = made.function
    monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.setitem(sys.modules, user.__name__, user)
    yield made
    assert user.__dict__["taken"] is made.function, "a copy was forgotten"
    assert not CHANGES.in_place


def gated(kit: Kit, site: Site) -> Gate:
    """A gate on the function and the class, in front of a patch of both."""

    def put() -> None:
        site.wrap(kit, "function", lambda wrapped, *_: ["ours", *wrapped()])
        site.wrap(kit.Model, "__init__", lambda wrapped, _, args, kwargs: (args[0].append("ours"), wrapped(*args))[1])

    gate = Gate(threading.RLock(), put)
    gate.put(kit, "function")
    gate.put(kit.Model, "__init__")
    return gate


def undone(gate: Gate, site: Site) -> List[str]:
    return [*site.undo(), *gate.undo()]


def by_wrapt(wrapped: Any) -> Any:
    return wrapt.FunctionWrapper(wrapped, lambda wrapped, _, args, kwargs: ["theirs", *wrapped(*args, **kwargs)])


def by_closure(wrapped: Any) -> Any:
    @functools.wraps(wrapped)
    def theirs() -> List[str]:
        return ["theirs", *wrapped()]

    return theirs


def by_global(wrapped: Any) -> Any:
    """As in a script: ``original = kit.function``, and a function that calls it."""
    script = {"original": wrapped}
    exec("def theirs():\n    return ['theirs', *original()]", script)
    return script["theirs"]


class Opaque:
    """Nobody can tell what this calls."""

    __slots__ = ("_call",)

    def __init__(self, wrapped: Any) -> None:
        self._call = iter(lambda: ["theirs", *wrapped()], None)

    def __call__(self) -> Any:
        return next(self._call)


def test_nothing_is_done_before_the_first_call(kit: Kit) -> None:
    before, site = kit.function, Site("kit.patch")
    gate = gated(kit, site)
    assert not site.records and kit.function is not before
    assert kit.function() == ["ours", "original"] and gate.is_open
    assert undone(gate, site) == [] and kit.function is before


def test_a_method_opens_it_and_takes_its_instance_along(kit: Kit) -> None:
    before, site = vars(kit.Model)["__init__"], Site("kit.patch")
    gate = gated(kit, site)
    for call in (kit.Model, lambda said: kit.Model.__init__(object.__new__(kit.Model), said)):
        said: List[str] = []
        call(said)
        assert said == ["ours", "original"]
    assert undone(gate, site) == [] and vars(kit.Model)["__init__"] is before


def below(layer: Any) -> Any:
    """What a layer of somebody else's calls."""
    return layer.__globals__["original"] if "original" in getattr(layer, "__globals__", {}) else layer.__wrapped__


@pytest.mark.parametrize("is_opened", [True, False])
@pytest.mark.parametrize("theirs", [by_wrapt, by_closure, by_global])
def test_a_patch_is_put_below_layers_that_came_since(kit: Kit, theirs: Callable[[Any], Any], is_opened: bool) -> None:
    original, site = kit.function, Site("kit.patch")
    gate, taken = gated(kit, site), kit.function
    top = kit.function = sys.modules["gated_user"].__dict__["taken"] = theirs(kit.function)
    for _ in range(2 if is_opened else 0):
        assert kit.function() == ["theirs", "ours", "original"] and kit.function is top
        # Who took the door along calls what is there now.
        assert taken() == ["ours", "original"]
    assert all(record.in_place() for record in site.in_force() if record.attribute == "function")
    assert undone(gate, site) == [] and kit.function is top and kit.function() == ["theirs", "original"]
    assert below(top) is original and taken() == ["original"]


@pytest.mark.parametrize("kind", ["function", "wrapt"])
def test_a_method_below_a_layer_that_came_since(kit: Kit, kind: str) -> None:
    site = Site("kit.patch")
    gate = gated(kit, site)
    taken = kit.Model.__init__

    def theirs(self: Any, said: List[str]) -> None:
        said.append("theirs")
        taken(self, said)

    if kind == "function":
        kit.Model.__init__ = theirs
    else:
        wrapt.wrap_function_wrapper(
            kit, "Model.__init__", lambda wrapped, _, args, kwargs: (args[0].append("theirs"), wrapped(*args))[1]
        )
    for _ in range(2):
        said: List[str] = []
        kit.Model(said)
        assert said == ["theirs", "ours", "original"]
    assert undone(gate, site) == []
    said = []
    kit.Model(said)
    assert said == ["theirs", "original"]


def test_what_nobody_can_look_into_goes_on_calling_the_door(kit: Kit) -> None:
    site = Site("kit.patch")
    gate = gated(kit, site)
    kit.function = sys.modules["gated_user"].__dict__["taken"] = Opaque(kit.function)
    gate.open()
    assert kit.function() == ["theirs", "ours", "original"]
    assert "no longer holds ddpfix's patch" in "".join(undone(gate, site)) and kit.function() == ["theirs", "original"]


def test_a_door_that_was_taken_away_is_no_loss(kit: Kit) -> None:
    before, site = kit.function, Site("kit.patch")
    gate = gated(kit, site)
    kit.function = sys.modules["gated_user"].__dict__["taken"] = before
    gate.open()
    assert kit.function() == ["ours", "original"]
    assert undone(gate, site) == [] and kit.function is before


@pytest.mark.parametrize("first", ["site", "early"])
def test_a_layer_of_another_patch_of_ours_stays_above_and_each_is_undone_first(kit: Kit, first: str) -> None:
    before, site, early = kit.function, Site("kit.patch"), Site("kit.early")
    gate = gated(kit, site)
    early.wrap(kit, "function", lambda wrapped, *_: ["early", *wrapped()])
    assert kit.function() == ["early", "ours", "original"] == kit.function()
    one, other = (site, early) if first == "site" else (early, site)
    assert one.undo() == []
    assert kit.function() == (["early", "original"] if first == "site" else ["ours", "original"])
    assert [*other.undo(), *gate.undo()] == [] and kit.function is before


def test_a_patch_that_raises_leaves_the_call_as_it_is(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    said: List[str] = []
    monkeypatch.setattr(log, "warning", said.append)
    gate = Gate(threading.RLock(), lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    gate.put(kit, "function")
    assert kit.function() == ["original"]
    assert said == ["some fixes could not be applied: ZeroDivisionError('integer division or modulo by zero')"]
    assert gate.undo() == []


def test_what_is_no_function_gets_no_door(kit: Kit) -> None:
    kit.Model.made, kit.Model.part = staticmethod(kit.function), kit
    before = dict(vars(kit.Model))
    gate = Gate(threading.RLock(), lambda: None)
    for name in ("made", "part", "__repr__", "absent"):
        gate.put(kit.Model, name)
    assert dict(vars(kit.Model)) == before and gate.undo() == []


def test_threads_open_it_once(kit: Kit) -> None:
    site, start = Site("kit.patch"), threading.Barrier(6)
    gate = gated(kit, site)
    first = [kit.function]

    def call(number: int) -> List[str]:
        start.wait()
        return first[0]()

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(call, range(6))) == [["ours", "original"]] * 6
    assert undone(gate, site) == []


@pytest.mark.parametrize(
    "begins",
    [
        # What is compiled keeps the forwards that its classes had.
        "torch.compile(torch.nn.Linear(1, 1))",
        pytest.param("torch.nn.Linear(1, 1).compile()", marks=pytest.mark.sampled(inside=False)),
    ],
)
def test_a_process_that_has_no_group_imports_no_patch_of_ddp(begins: str) -> None:
    code = (
        "import sys, ddpfix.auto, torch\n"
        "assert not [name for name in sys.modules if name.startswith('ddpfix.patches.torch.')]\n"
        f"{begins}\n"
        "assert 'ddpfix.patches.torch.pipeline.ddp' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


BUILT = """
import ddpfix.auto
from transformers import WavLMConfig
from transformers.models.wavlm.modeling_wavlm import WavLMEncoder, WavLMModel
from ddpfix.layerdrop import cover
assert WavLMEncoder not in cover.COVERED
sizes = dict(hidden_size=8, intermediate_size=8, num_attention_heads=1, num_hidden_layers=1, num_conv_pos_embeddings=2)
convolutions = dict(conv_dim=(4,), conv_stride=(2,), conv_kernel=(2,), num_conv_pos_embedding_groups=1)
model = WavLMModel(WavLMConfig(**sizes, **convolutions))
# Who keeps the forward of an instance, before there is a process group, keeps the one that has ranks in step.
kept = model.encoder.forward
assert WavLMEncoder in cover.COVERED and kept.__func__ is vars(WavLMEncoder)["forward"]
"""


def test_the_first_model_of_transformers_has_ranks_in_step() -> None:
    pytest.importorskip("transformers")
    subprocess.run([sys.executable, "-c", BUILT], check=True, timeout=120)


WRAPPED = """
import functools, os, sys
import ddpfix
ddpfix.activate(unused="late")
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel as DDP
for name in ("__init__", "forward"):
    def wrapper(was):
        @functools.wraps(was)
        def theirs(self, *args, **kwargs):
            return was(self, *args, **kwargs)
        return theirs
    setattr(DDP, name, wrapper(vars(DDP)[name]))
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
# Without its door the group is there, and the first call of one is the constructor's.
distributed.init_process_group.__wrapped__("gloo", rank=0, world_size=1, store=distributed.HashStore())
model = DDP(torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])[0])
states = {patch.id: patch.state for patch in ddpfix.report().patches if patch.toolkit == "torch"}
assert states["torch.finalize"] == states["torch.diagnosis"] == states["torch.agreement"] == "applied", states
assert "failed" not in states.values(), states
assert vars(DDP)["__init__"].__code__.co_name == "theirs"
distributed.destroy_process_group()
"""


def test_the_constructor_of_a_model_opens_it_below_the_layers_of_others() -> None:
    done = subprocess.run([sys.executable, "-c", WRAPPED], timeout=120, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0 and "ddpfix: " not in done.stderr.replace("ddpfix: 0", ""), done.stderr
