"""From stacks to places, and how a rank is followed."""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest
import torch
from torch import distributed

from ddpfix.exchange import failure_records
from ddpfix.groups import calls, internals, timeouts
from ddpfix.matrix import loader
from ddpfix.monitor import hang as monitor
from ddpfix.monitor import loaders, places, processes
from ddpfix.monitor.places import StackFrame
from ddpfix.monitor.position import Tracker
from ddpfix.monitor.watch import PERIOD, Rank
from ddpfix.rules import facts

TORCH = os.path.dirname(torch.__file__)


def in_torch(file: str, name: str) -> StackFrame:
    return StackFrame(os.path.join(TORCH, *file.split("/")), 1, name)


MAIN = StackFrame("/home/someone/train.py", 88, "main")
PYTHON = os.path.dirname(os.__file__)
TRAINER = "/venv/lib/python3/site-packages/transformers/trainer.py"
CALL = in_torch("nn/modules/module.py", "_call_impl")
ENGINE = in_torch("autograd/graph.py", "_engine_run_backward")
LOADS = in_torch("utils/data/dataloader.py", "__next__")
STACKS: List[Tuple[List[StackFrame], Optional[bool], str, str]] = [
    ([MAIN, LOADS, in_torch("utils/data/dataloader.py", "_next_data")], None, facts.LOADER, "DataLoader.__next__"),
    ([MAIN, in_torch("_tensor.py", "backward"), ENGINE], None, facts.BACKWARD, "backward"),
    ([MAIN, in_torch("distributed/distributed_c10d.py", "all_reduce")], None, facts.COLLECTIVE, "all_reduce"),
    ([MAIN, in_torch("distributed/distributed_c10d.py", "barrier")], None, facts.COLLECTIVE, "barrier"),
    ([MAIN, in_torch("nn/parallel/distributed.py", "_pre_forward")], None, facts.WRAPPER, "DDP's forward"),
    ([MAIN, in_torch("nn/parallel/distributed.py", "__init__")], None, facts.WRAPPER, "DDP's constructor"),
    ([MAIN, in_torch("serialization.py", "save"), MAIN], None, facts.CHECKPOINT, "torch.save"),
    (
        [MAIN, StackFrame(f"{PYTHON}/pdb.py", 1, "interaction"), StackFrame(f"{PYTHON}/cmd.py", 1, "cmdloop")],
        None,
        facts.DEBUGGER,
        "",
    ),
    ([MAIN, CALL], True, facts.FORWARD, "forward"),
    ([MAIN, CALL], False, facts.EVALUATION, "forward in evaluation mode"),
    ([MAIN, MAIN._replace(name="validate"), LOADS], None, facts.EVALUATION, "validate"),
    ([MAIN._replace(name="train_and_evaluate"), LOADS], None, facts.LOADER, "DataLoader.__next__"),
    ([MAIN._replace(name="evaluate_while"), CALL], True, facts.FORWARD, "forward"),
    ([MAIN._replace(name="evaluate"), in_torch("_tensor.py", "backward"), ENGINE], None, facts.BACKWARD, "backward"),
    ([MAIN, MAIN._replace(name="save_checkpoint")], None, facts.CHECKPOINT, "save_checkpoint"),
    ([MAIN, in_torch("optim/adamw.py", "step")], None, facts.STEP, "the optimizer's step"),
    # Lightning has forward and backward in the closure.
    ([MAIN, in_torch("optim/sgd.py", "step"), MAIN._replace(name="closure"), CALL], True, facts.FORWARD, "forward"),
    ([MAIN, in_torch("optim/sgd.py", "step"), in_torch("optim/sgd.py", "sgd")], None, facts.STEP, "the optimizer's"),
    # Activation checkpointing is no save, and the program around @record no collective.
    ([MAIN, in_torch("utils/checkpoint.py", "checkpoint"), CALL], True, facts.FORWARD, "forward"),
    ([in_torch("distributed/elastic/multiprocessing/errors/__init__.py", "wrapper"), MAIN], None, facts.OTHER, "main"),
    ([MAIN, StackFrame(f"{PYTHON}/threading.py", 1, "wait")], None, facts.OTHER, "wait of "),
    # A name of several things tells none: transformers' Trainer reads the loss there, in each step that is logged.
    ([MAIN, StackFrame(TRAINER, 1, "_maybe_log_save_evaluate")], None, facts.OTHER, ""),
    ([MAIN, StackFrame(TRAINER, 1, "evaluate")], None, facts.EVALUATION, ""),
    ([MAIN, StackFrame(TRAINER, 1, "_save_checkpoint")], None, facts.CHECKPOINT, ""),
]


@pytest.mark.parametrize("number", range(len(STACKS)))
def test_a_stack_is_told_by_its_files_and_names(number: int) -> None:
    stack, training, phase, what = STACKS[number]
    place = places.classify(stack, training)
    assert (place.phase, place.where) == (phase, "train.py:88") and place.what.startswith(what), place


def test_a_line_that_waits_for_the_gpu_is_told_by_its_text(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("total += loss.item()\nwork.wait()\n")
    stack = [StackFrame(str(script), 1, "main")]
    assert places.classify(stack, on_device=True).phase == facts.DEVICE
    assert places.classify(stack).phase == facts.OTHER
    assert places.classify([*stack, in_torch("functional.py", "f")], on_device=True).phase == facts.OTHER
    assert places.classify([StackFrame(str(script), 2, "main")]).phase == facts.COLLECTIVE


GRAD_SCALER, LINEAR = in_torch("amp/grad_scaler.py", "_maybe_opt_step"), in_torch("nn/modules/linear.py", "forward")
# What a rank stands in that waits for its GPU: the line of the innermost frame, the frames below the script, what is
# said. The driver is called below Python, so no frame of its own is there.
READS: List[Tuple[str, List[StackFrame], str]] = [
    ("total += loss.item()", [], facts.GPU),
    ("if torch.isnan(loss):", [], facts.GPU),
    ("total += float(loss)", [], facts.GPU),
    ("x = x.to(device)", [], facts.GPU),
    ("return sum(v.item() for v in found.values())", [GRAD_SCALER], facts.GPU),
    ("loss = tr_loss.mean().item()", [StackFrame(TRAINER, 1, "_maybe_log_save_evaluate")], facts.GPU),
    ("and (torch.isnan(loss) or torch.isinf(loss))", [StackFrame(TRAINER, 1, "_inner_training_loop")], facts.GPU),
    ("self.total = loss.detach().cpu()", [StackFrame("/venv/site-packages/funasr/t.py", 1, "train_epoch")], facts.GPU),
    ("return F.linear(x, w)", [CALL, LINEAR], "forward of modules/linear.py"),
    (
        "torch._foreach_add_(a, b)",
        [in_torch("optim/adam.py", "step"), in_torch("optim/adam.py", "_multi")],
        "_multi of",
    ),
    ("return self[0]", [in_torch("_tensor.py", "__repr__"), in_torch("_tensor_str.py", "_str")], "_str of"),
    ("if error_if_nonfinite:", [in_torch("nn/utils/clip_grad.py", "clip_grad_norm_")], "clip_grad_norm_ of"),
    ("torch._C._synchronize()", [in_torch("cuda/__init__.py", "synchronize")], "synchronize of"),
]
# The same of what waits for something else, or computes.
OTHERS: List[Tuple[str, List[StackFrame], str]] = [
    ("time.sleep(float(seconds))", [], facts.OTHER),
    ("found = library.decode(lattice)", [], facts.OTHER),
    ("data = self._get_data().to(device)", [LOADS], facts.LOADER),
    ("waiter.acquire()", [StackFrame(f"{PYTHON}/threading.py", 1, "wait")], facts.OTHER),
    ("return self.file.write(data.cpu())", [in_torch("serialization.py", "save")], facts.CHECKPOINT),
    ("work = group.all_reduce(x.to(device))", [in_torch("distributed/distributed_c10d.py", "f")], facts.COLLECTIVE),
]


def standing(monkeypatch: pytest.MonkeyPatch, line: str, below: List[StackFrame], **how: bool) -> places.Place:
    innermost = [MAIN, *below][-1].file
    texts = {innermost: line}
    monkeypatch.setattr(linecache, "getline", lambda file, number: texts.get(file, ""))
    return places.classify([MAIN, *below], **how)


@pytest.mark.parametrize(("line", "below", "what"), READS, ids=[each[0] for each in READS])
def test_whatever_stands_in_one_instruction_may_wait_for_its_gpu(
    monkeypatch: pytest.MonkeyPatch, line: str, below: List[StackFrame], what: str
) -> None:
    place = standing(monkeypatch, line, below, on_device=True, stands=True)
    assert place.phase == facts.DEVICE and place.what.startswith(what), place
    # In passing, and without a GPU, it is what it was.
    passing = standing(monkeypatch, line, below, on_device=True)
    assert passing.phase != facts.DEVICE or ".item(" in line or ".cpu(" in line
    assert standing(monkeypatch, line, below, stands=True).phase != facts.DEVICE


OWN_FORWARD = [CALL, StackFrame("/home/me/model.py", 1, "forward")]


def test_a_models_own_forward_that_stands_may_find_the_queue_full(monkeypatch: pytest.MonkeyPatch) -> None:
    how: Dict[str, Any] = {"on_device": True, "stands": True}
    place = standing(monkeypatch, "value = value + 1", OWN_FORWARD, training=True, **how)
    assert (place.phase, place.what) == (facts.DEVICE, "forward")
    # In evaluation, where nothing stands, without a GPU, and where it sleeps, it is what it was.
    for others in (
        {"training": False, **how},
        {"training": True, "on_device": True},
        {"training": True, "stands": True},
    ):
        assert standing(monkeypatch, "value = value + 1", OWN_FORWARD, **others).phase != facts.DEVICE
    assert standing(monkeypatch, "time.sleep(9)", OWN_FORWARD, training=True, **how).phase != facts.DEVICE


@pytest.mark.parametrize(("line", "below", "phase"), OTHERS, ids=[each[0] for each in OTHERS])
def test_what_waits_for_something_else_is_told_as_before(
    monkeypatch: pytest.MonkeyPatch, line: str, below: List[StackFrame], phase: str
) -> None:
    assert standing(monkeypatch, line, below, on_device=True, stands=True).phase == phase


def becomes(who: failure_records.Present, state: str) -> bool:
    """Whether a process soon has a state."""
    end = time.monotonic() + 30
    while processes.state_of(who) != state and time.monotonic() < end:
        time.sleep(0.02)
    return processes.state_of(who) == state


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="only Linux tells the state of a process")
def test_a_process_that_is_stopped_or_gone_is_told_by_the_system() -> None:
    code = "import time; print('sleeps', flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    who = failure_records.here()._replace(pid=child.pid)
    try:
        assert child.stdout is not None and child.stdout.readline() == b"sleeps\n"
        assert processes.in_words(processes.lasting(child.pid)) == ""
        os.kill(child.pid, 19)
        assert becomes(who, processes.STOPPED) and "is stopped" in processes.in_words(processes.state_of(who))
    finally:
        child.kill()
    assert becomes(who, processes.GONE), "it is gone for others also if nobody has asked for its code"
    child.wait()
    assert processes.state_of(who) == processes.GONE
    assert processes.state_of(who._replace(space="elsewhere")) == ""


def test_only_a_wait_for_a_disk_that_lasts_is_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    letters = iter("DSDDSDDDS")
    monkeypatch.setattr(processes, "state", lambda pid, path: next(letters))
    assert [processes.lasting(1) for _ in range(4)] == ["S", "S", processes.DISK, "S"]


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (9, "It was ended by SIGKILL, as when the system runs out of memory"),
        # With a core.
        (128 + 6, "It was ended by SIGABRT, as when gloo"),
        (11, "It was ended by SIGSEGV"),
        (40, "It was ended by signal 40"),
        (3 << 8, "It exited with code 3 past the end of its program"),
        (0, "It was ended by a signal (by the launcher, where that was stopped) or called os._exit"),
    ],
)
def test_how_a_process_has_ended(monkeypatch: pytest.MonkeyPatch, status: int, told: str) -> None:
    monkeypatch.setattr(processes, "_stat_fields", lambda pid: ["Z", *["0"] * 48, str(status)])
    assert processes.how(1).startswith(told)
    monkeypatch.setattr(processes, "_stat_fields", lambda pid: ["S", *["0"] * 48, str(status)])
    assert processes.how(1).startswith("It was ended by a signal")


def test_the_stacks_of_all_threads_are_in_one_file(tmp_path: Path) -> None:
    for _ in range(2):
        assert monitor.write_stacks(str(tmp_path / "new"), 3, "why")
    text = (tmp_path / "new" / "hang-rank-3.txt").read_text()
    assert text.count("rank 3") == 2 and "test_hang.py" in text
    assert not monitor.write_stacks(str(tmp_path / "new" / "hang-rank-3.txt"), 3, "a file is there")


def test_a_loader_tells_how_far_it_is() -> None:
    batches = torch.utils.data.DataLoader(torch.ones(4, 2), sampler=torch.utils.data.RandomSampler(range(4)))
    batches.sampler.epoch = 7  # type: ignore[attr-defined]
    before = len(loaders.alive())
    reading = iter(batches)
    next(reading)
    assert loaders.of(reading) == loaders.Loading(1, 7, "") and len(loaders.alive()) == before + 1


def test_a_rank_is_followed_without_a_word_from_it() -> None:
    steps = [1]
    tracker = Tracker(Rank(0, 1, lambda: steps[0]))
    tracker.look()
    steps[0] = 2
    assert tracker.look() == 0.0
    time.sleep(0.05)
    assert tracker.look() >= 0.05
    position = tracker.position()
    assert position.step == 2 and position.where.startswith("test_hang.py:") and position.since >= 0.05
    assert not tracker.may_wait() and not position.may_wait()


@pytest.mark.parametrize(
    ("limits", "least"), [([100.0], 50), ([None], 300), ([1800.0], 300), ([100.0, 80.0], 40), ([-100.0, 200.0], 100)]
)
def test_it_is_said_before_a_group_gives_up(monkeypatch: pytest.MonkeyPatch, limits: List[Any], least: float) -> None:
    """A group whose wait limits itself, which has a negative number here, is no measure."""
    monkeypatch.setattr(internals, "groups", lambda: limits)
    monkeypatch.setattr(timeouts, "shortest", lambda group: group)
    monkeypatch.setattr(calls, "limits_itself", lambda group: group is not None and group < 0)
    assert monitor.Monitor(distributed.HashStore(), Rank(0, 2, lambda: None), 300.0)._limit() == least


def test_a_look_is_cheap(tmp_path: Path) -> None:
    """Nothing runs in a step: of a look every two seconds, a step of a tenth of a second bears a twentieth."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        tracker = Tracker(Rank(0, 1, lambda: None))
        times = []
        for _ in range(9):
            begun = time.thread_time()
            for _ in range(100):
                # As if a collective had begun since the last look.
                tracker._counts = {}
                assert tracker.look() == 0.0
            times.append((time.thread_time() - begun) / 100)
    finally:
        distributed.destroy_process_group()
    assert sorted(times)[4] / (PERIOD / 0.1) < 2e-6, times


def test_a_training_step_runs_no_code_of_it() -> None:
    """It puts no stage in, and wraps nothing that a step calls."""
    own = [row for row in loader.load().rows if row.patch == "torch.hang"]
    changed = {str(target).rpartition(":")[2] for row in own for target in row.targets}
    assert changed == {"init_process_group"}
