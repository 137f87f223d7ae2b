"""A process by itself: what counts as a step, whose time is whose, and errors that must not reach the program."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any, Callable, Iterator, List, Tuple

import pytest
import torch
from ddpfix.patches.torch.tracing import step_row
from torch import nn
from torch.utils.data import DataLoader

import ddpfix
from ddpfix import engine, log
from ddpfix.trace import reader
from ddpfix.trace.reader import Run
from ddpfix.trace.writer import PENDING

pytestmark = pytest.mark.patches("torch.trace")
End = Callable[[], Run]


@pytest.fixture
def end(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[End]:
    """The trace is on; returns what ends it and reads it."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    ddpfix.activate(trace=tmp_path / "trace", log="off", **getattr(request, "param", {}))

    def ended() -> Run:
        assert ddpfix.deactivate() == []
        return reader.read(tmp_path / "trace").runs[0]

    yield ended
    assert ddpfix.deactivate() == []


def small() -> Tuple[nn.Module, Any]:
    layer = nn.Linear(2, 1)
    return layer, torch.optim.SGD(layer.parameters(), lr=0.1)


def train(layer: nn.Module, optimizer: Any) -> None:
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def recorder() -> Any:
    from ddpfix.patches.torch.tracing import trace

    active = engine.current()
    assert active is not None
    return trace._recorder(active.sites["torch.trace"])


def test_a_process_that_trains_nothing_leaves_nothing(end: End, tmp_path: Path) -> None:
    assert list(DataLoader(range(4)))  # type: ignore[arg-type]
    torch.ones(2, requires_grad=True).sum().backward()
    ddpfix.deactivate()
    assert not (tmp_path / "trace").exists()


def test_optimizers_that_step_one_after_the_other_share_a_row(end: End) -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    both = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (one, other)]
    for _ in range(3):
        loss = other(one(torch.ones(1, 2))).pow(2).sum()
        loss.backward()
        for optimizer in both:
            optimizer.step()
            optimizer.zero_grad()
    # As a generator and its discriminator do: each has a backward before it.
    for part, optimizer in zip((one, other), both):
        train(part, optimizer)
    steps = end().steps
    assert steps["step"] == [1, 2, 3, 4, 5]
    # No model is under DDP.
    for name in ("wait", "forward", "skipped", "unused"):
        assert steps[name] == [None] * 5, name


def test_a_closure_runs_its_backwards_within_the_step(end: End) -> None:
    layer = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = layer(torch.ones(1, 2)).pow(2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]
    steps = end().steps
    assert steps["step"] == [1] and steps["backward"][0] > 0
    assert steps["optimizer"][0] >= 0 and steps["optimizer"][0] + steps["backward"][0] <= steps["total"][0] + 1e-5


def test_a_backward_that_fails_and_one_within_another(end: End) -> None:
    layer, optimizer = small()

    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
            return values.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            with torch.enable_grad():
                torch.ones(1, requires_grad=True).sum().backward()
            return gradient

    with pytest.raises(RuntimeError, match="scalar"):
        layer(torch.ones(2, 2)).backward()
    Inner.apply(layer(torch.ones(1, 2))).sum().backward()
    # The program has called backward twice; the inner one is a part of the second.
    assert recorder().row.backwards == 2
    optimizer.step()
    assert end().steps["step"] == [1]


def test_a_step_that_fails_and_one_of_a_base_class(end: End) -> None:
    layer = nn.Linear(2, 1)

    class Derived(torch.optim.SGD):
        fails = False

        def step(self, closure: Any = None) -> Any:  # type: ignore[override, unused-ignore]
            if self.fails:
                raise KeyError("of the program")
            return super().step(closure)

    optimizer = Derived(layer.parameters(), lr=0.1)
    for step in range(4):
        layer(torch.ones(1, 2)).sum().backward()
        optimizer.fails = step == 1
        if optimizer.fails:
            with pytest.raises(KeyError):
                optimizer.step()
        else:
            optimizer.step()
    steps = end().steps
    assert steps["step"] == [1, 2, 3]
    assert all(0 <= one <= whole for one, whole in zip(steps["optimizer"], steps["total"]))


def test_what_other_threads_do_is_not_this_ones(end: End) -> None:
    layer, optimizer = small()
    for _ in range(2):
        train(layer, optimizer)
    thread = threading.Thread(target=train, args=small())
    thread.start()
    thread.join()
    assert end().steps["step"] == [1, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_process_that_is_forked_before_the_first_step_has_a_trace_and_a_later_one_has_none(
    end: End, tmp_path: Path
) -> None:
    def trained_in_a_child() -> None:
        child = multiprocessing.get_context("fork").Process(target=train, args=small())
        child.start()
        child.join(60)
        assert child.exitcode == 0

    trained_in_a_child()
    run = reader.read(tmp_path / "trace").runs[0]
    assert run.steps["step"] == [1] and run.end is not None and run.header["pid"] != os.getpid()
    train(*small())
    trained_in_a_child()
    run = end()
    assert run.steps["step"] == [1] and run.header["pid"] == os.getpid()
    assert len(list((tmp_path / "trace").iterdir())) == 2


def test_an_error_of_the_trace_does_not_reach_the_program(end: End, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, optimizer = small()

    train(layer, optimizer)
    running = recorder()

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(running._waits, "settle", broken)
    for _ in range(3):
        train(layer, optimizer)
    assert not running.on
    monkeypatch.undo()
    run = end()
    assert run.steps["step"] == [1]
    assert any("ZeroDivisionError('ours')" in event["text"] for event in run.events)


def test_lines_that_ddpfix_logs_are_events(end: End) -> None:
    log.info("before the first step")
    train(*small())
    log.warning("a warning of test_single")
    log.warning("a warning of test_single")
    log.record("error", "rank 1 ended without a word")
    log.debug("nobody has asked for this")
    logging.getLogger("other").warning("not ours")
    events = end().events
    told = [(event["level"], event["text"], event["step"]) for event in events]
    assert ("info", "before the first step", 0) in told
    assert told.count(("warning", "a warning of test_single", 1)) == 1
    assert ("error", "rank 1 ended without a word", 1) in told
    assert not any(text in ("nobody has asked for this", "not ours") for _, text, _ in told)


class Event:
    """What an accelerator has come to, or not yet."""

    def __init__(self, at: float, there: bool = True) -> None:
        self.at, self.there = at, there

    def query(self) -> bool:
        return self.there

    def elapsed_time(self, end: Event) -> float:
        if end.at < 0:
            raise RuntimeError("events of two devices")
        return 1000 * (end.at - self.at)


def test_waits_come_when_the_accelerator_has_come_so_far() -> None:
    waits, late = step_row.Waits(), Event(2.5, there=False)
    rows: List[Any] = [{}, {}, {}, {}]
    for row, parts in zip(rows, ([], [0.25, 0.5], [0.25, (Event(2.0), late)], [(Event(1.0), Event(-1.0))])):
        waits.put(row, parts)
    waits.settle()
    assert rows == [{}, {"wait": 0.75}, {"wait": PENDING}, {"wait": PENDING}]
    late.there = True
    waits.settle()
    assert rows[2:] == [{"wait": 0.75}, {"wait": None}]


class Halves(nn.Module):
    """Two layers, of which a forward uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.halves = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))

    def forward(self, values: torch.Tensor, which: int) -> Any:
        return self.halves[which](values).sum()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    from torch import distributed

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("end", [{}, {"layerdrop": "stock", "unused": "find"}], ids=["ddpfix", "stock"], indirect=True)
def test_layers_of_two_stacks_have_numbers_of_their_own(end: End) -> None:
    transformers = pytest.importorskip("transformers")
    from torch.nn.parallel import DistributedDataParallel

    sizes = {"vocab_size": 24, "d_model": 8, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    layers = {"encoder_layers": 3, "decoder_layers": 2, "encoder_layerdrop": 0.5, "decoder_layerdrop": 0.5}
    wrapped = DistributedDataParallel(transformers.BartModel(transformers.BartConfig(**sizes, **layers)).train())
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    names = [f"encoder.layers.{layer}" for layer in range(3)] + [f"decoder.layers.{layer}" for layer in range(2)]
    called: List[str] = []
    for name in names:
        wrapped.module.get_submodule(name).register_forward_hook(lambda *_, name=name: called.append(name))
    expected = []
    for _ in range(12):
        called.clear()
        output = wrapped(input_ids=torch.ones(1, 4, dtype=torch.long))
        # Both stacks get a gradient whatever the other one skips.
        (output[0].sum() + output.encoder_last_hidden_state.sum()).backward()
        expected.append([name for name in names if name not in called])
        optimizer.step()
        optimizer.zero_grad()
    run = end()
    (model,) = run.models
    assert sorted(model["layers"]) == sorted(names) and any(expected)
    # LayerDrop as shipped is known by calls, and a forward without any may be one of other parts.
    shipped = run.header["settings"]["layerdrop"]["value"] == "stock"
    told = [[] if shipped and len(some) == len(names) else sorted(some) for some in expected]
    assert [sorted(model["layers"][i] for i in some) for some in run.steps["skipped"]] == told
    # All parameters of a layer that was skipped, and none of one that ran.
    unused = [{model["parameters"][i] for i in some} for some in run.steps["unused"]]
    of = [[name for name in names if any(each.startswith(f"{name}.") for each in some)] for some in unused]
    assert [sorted(some) for some in of] == [*map(sorted, expected)]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("to_none", [True, False])
def test_who_got_no_gradient_is_not_known_where_gradients_are_kept(end: End, to_none: bool) -> None:
    """Under the flag DDP leaves what is there where no rank has a gradient."""
    from torch.nn.parallel import DistributedDataParallel

    wrapped = DistributedDataParallel(Halves(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for step in range(4):
        loss = wrapped(torch.ones(1, 2), step % 2)
        # After the forward: as good as before it.
        optimizer.zero_grad(set_to_none=to_none)
        loss.backward()
        optimizer.step()
    run = end()
    (model,) = run.models
    names = [found and [model["parameters"][index] for index in found] for found in run.steps["unused"]]
    others = [[f"halves.{1 - step % 2}.{name}" for name in ("weight", "bias")] for step in range(4)]
    # Before the first step there were no gradients.
    assert names == (others if to_none else [others[0], None, None, None])


@pytest.mark.usefixtures("alone")
@pytest.mark.patches("torch.diagnosis")
@pytest.mark.parametrize("end", [{"unused": "off"}], ids=[""], indirect=True)
def test_a_diagnosis_is_in_the_trace_when_the_error_is_raised(end: End, capfd: pytest.CaptureFixture[str]) -> None:
    """Before anything else comes: a launcher may kill this process in the next moment."""
    from torch.nn.parallel import DistributedDataParallel

    wrapped = DistributedDataParallel(Halves())
    wrapped(torch.ones(1, 2), 0).backward()
    torch.optim.SGD(wrapped.parameters(), lr=0.1).step()
    with pytest.raises(RuntimeError, match="Expected to have finished reduction"):
        wrapped(torch.ones(1, 2), 0)
    lines = [json.loads(line) for line in recorder().writer.file.read_text().splitlines()]
    (told,) = [line["text"] for line in lines if line.get("level") == "diagnosis"]
    # As tests/report reads it.
    assert told.startswith("2 parameters got no gradient on rank 0") and "halves.1 (weight, bias)" in told
    assert "\nddpfix: cause: " in told and "\nddpfix: cure: " in told and "find_unused_parameters=True" in told
    assert "got no gradient" not in capfd.readouterr().err
