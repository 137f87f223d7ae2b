"""From stacks to places, and from places to a verdict, without a rank."""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest
import torch
from torch import distributed

from ddpfix.matrix import loader
from ddpfix.ranks.hang import loaders, monitor, places, processes, verdict, words
from ddpfix.ranks.hang import position as gone
from ddpfix.ranks.hang.monitor import PERIOD
from ddpfix.ranks.hang.places import Spot
from ddpfix.ranks.hang.position import Position, Tracker

TORCH = os.path.dirname(torch.__file__)


def in_torch(file: str, name: str) -> Spot:
    return Spot(os.path.join(TORCH, *file.split("/")), 1, name)


MAIN = Spot("/home/someone/train.py", 88, "main")
PYTHON = os.path.dirname(os.__file__)
CALL = in_torch("nn/modules/module.py", "_call_impl")
ENGINE = in_torch("autograd/graph.py", "_engine_run_backward")
LOADS = in_torch("utils/data/dataloader.py", "__next__")
STACKS: List[Tuple[List[Spot], Optional[bool], str, str]] = [
    ([MAIN, LOADS, in_torch("utils/data/dataloader.py", "_next_data")], None, places.LOADER, "DataLoader.__next__"),
    ([MAIN, in_torch("_tensor.py", "backward"), ENGINE], None, places.BACKWARD, "backward"),
    ([MAIN, in_torch("distributed/distributed_c10d.py", "all_reduce")], None, places.COLLECTIVE, "all_reduce"),
    ([MAIN, in_torch("distributed/distributed_c10d.py", "barrier")], None, places.COLLECTIVE, "barrier"),
    ([MAIN, in_torch("nn/parallel/distributed.py", "_pre_forward")], None, places.WRAPPER, "DDP's forward"),
    ([MAIN, in_torch("nn/parallel/distributed.py", "__init__")], None, places.WRAPPER, "DDP's constructor"),
    ([MAIN, in_torch("serialization.py", "save"), MAIN], None, places.CHECKPOINT, "torch.save"),
    (
        [MAIN, Spot(f"{PYTHON}/pdb.py", 1, "interaction"), Spot(f"{PYTHON}/cmd.py", 1, "cmdloop")],
        None,
        places.DEBUGGER,
        "",
    ),
    ([MAIN, CALL], True, places.FORWARD, "forward"),
    ([MAIN, CALL], False, places.EVALUATION, "forward in evaluation mode"),
    ([MAIN, MAIN._replace(name="validate"), LOADS], None, places.EVALUATION, "validate"),
    ([MAIN._replace(name="train_and_evaluate"), LOADS], None, places.LOADER, "DataLoader.__next__"),
    ([MAIN._replace(name="evaluate_while"), CALL], True, places.FORWARD, "forward"),
    ([MAIN._replace(name="evaluate"), in_torch("_tensor.py", "backward"), ENGINE], None, places.BACKWARD, "backward"),
    ([MAIN, MAIN._replace(name="save_checkpoint")], None, places.CHECKPOINT, "save_checkpoint"),
    ([MAIN, in_torch("optim/adamw.py", "step")], None, places.STEP, "the optimizer's step"),
    # Lightning has forward and backward in the closure.
    ([MAIN, in_torch("optim/sgd.py", "step"), MAIN._replace(name="closure"), CALL], True, places.FORWARD, "forward"),
    ([MAIN, in_torch("optim/sgd.py", "step"), in_torch("optim/sgd.py", "sgd")], None, places.STEP, "the optimizer's"),
    # Activation checkpointing is no save, and the program around @record no collective.
    ([MAIN, in_torch("utils/checkpoint.py", "checkpoint"), CALL], True, places.FORWARD, "forward"),
    ([in_torch("distributed/elastic/multiprocessing/errors/__init__.py", "wrapper"), MAIN], None, places.OTHER, "main"),
    ([MAIN, Spot(f"{PYTHON}/threading.py", 1, "wait")], None, places.OTHER, "wait of "),
]


@pytest.mark.parametrize("number", range(len(STACKS)))
def test_a_stack_is_told_by_its_files_and_names(number: int) -> None:
    stack, training, phase, what = STACKS[number]
    place = places.classify(stack, training)
    assert (place.phase, place.where) == (phase, "train.py:88") and place.what.startswith(what), place


def test_a_line_that_waits_for_the_gpu_is_told_by_its_text(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("total += loss.item()\nwork.wait()\n")
    stack = [Spot(str(script), 1, "main")]
    assert places.classify(stack, on_device=True).phase == places.DEVICE
    assert places.classify(stack).phase == places.OTHER
    assert places.classify([Spot(str(script), 2, "main")]).phase == places.COLLECTIVE


GRAD_SCALER, LINEAR = in_torch("amp/grad_scaler.py", "_maybe_opt_step"), in_torch("nn/modules/linear.py", "forward")
TRAINER = "/venv/lib/python3/site-packages/transformers/trainer.py"
# What a rank stands in that waits for its GPU: the line of the innermost frame, the frames below the script, what is
# said. The driver is called below Python, so no frame of its own is there.
READS: List[Tuple[str, List[Spot], str]] = [
    ("total += loss.item()", [], places.GPU),
    ("if torch.isnan(loss):", [], places.GPU),
    ("total += float(loss)", [], places.GPU),
    ("x = x.to(device)", [], places.GPU),
    ("return sum(v.item() for v in found.values())", [GRAD_SCALER], places.GPU),
    ("loss = tr_loss.mean().item()", [Spot(TRAINER, 1, "_maybe_log_save_evaluate")], places.GPU),
    ("and (torch.isnan(loss) or torch.isinf(loss))", [Spot(TRAINER, 1, "_inner_training_loop")], places.GPU),
    ("self.total = loss.detach().cpu()", [Spot("/venv/site-packages/funasr/t.py", 1, "train_epoch")], places.GPU),
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
OTHERS: List[Tuple[str, List[Spot], str]] = [
    ("time.sleep(float(seconds))", [], places.OTHER),
    ("found = library.decode(lattice)", [], places.OTHER),
    ("data = self._get_data().to(device)", [LOADS], places.LOADER),
    ("waiter.acquire()", [Spot(f"{PYTHON}/threading.py", 1, "wait")], places.OTHER),
    ("return self.file.write(data.cpu())", [in_torch("serialization.py", "save")], places.CHECKPOINT),
    ("work = group.all_reduce(x.to(device))", [in_torch("distributed/distributed_c10d.py", "f")], places.COLLECTIVE),
]


def standing(monkeypatch: pytest.MonkeyPatch, line: str, below: List[Spot], **how: bool) -> places.Place:
    innermost = [MAIN, *below][-1].file
    texts = {innermost: line}
    monkeypatch.setattr(linecache, "getline", lambda file, number: texts.get(file, ""))
    return places.classify([MAIN, *below], **how)


@pytest.mark.parametrize(("line", "below", "what"), READS, ids=[each[0] for each in READS])
def test_whatever_stands_in_one_instruction_may_wait_for_its_gpu(
    monkeypatch: pytest.MonkeyPatch, line: str, below: List[Spot], what: str
) -> None:
    place = standing(monkeypatch, line, below, on_device=True, stands=True)
    assert place.phase == places.DEVICE and place.what.startswith(what), place
    # In passing, and without a GPU, it is what it was.
    passing = standing(monkeypatch, line, below, on_device=True)
    assert passing.phase != places.DEVICE or ".item(" in line or ".cpu(" in line
    assert standing(monkeypatch, line, below, stands=True).phase != places.DEVICE


OWN_FORWARD = [CALL, Spot("/home/me/model.py", 1, "forward")]


def test_a_models_own_forward_that_stands_may_find_the_queue_full(monkeypatch: pytest.MonkeyPatch) -> None:
    how: Dict[str, Any] = {"on_device": True, "stands": True}
    place = standing(monkeypatch, "value = value + 1", OWN_FORWARD, training=True, **how)
    assert (place.phase, place.what) == (places.DEVICE, "forward")
    # In evaluation, where nothing stands, without a GPU, and where it sleeps, it is what it was.
    for others in (
        {"training": False, **how},
        {"training": True, "on_device": True},
        {"training": True, "stands": True},
    ):
        assert standing(monkeypatch, "value = value + 1", OWN_FORWARD, **others).phase != places.DEVICE
    assert standing(monkeypatch, "time.sleep(9)", OWN_FORWARD, training=True, **how).phase != places.DEVICE


@pytest.mark.parametrize(("line", "below", "phase"), OTHERS, ids=[each[0] for each in OTHERS])
def test_what_waits_for_something_else_is_told_as_before(
    monkeypatch: pytest.MonkeyPatch, line: str, below: List[Spot], phase: str
) -> None:
    assert standing(monkeypatch, line, below, on_device=True, stands=True).phase == phase


def test_a_name_of_several_things_tells_none() -> None:
    """transformers' Trainer reads the loss there, in each step that is logged."""
    inside = [MAIN, Spot(TRAINER, 1, "_maybe_log_save_evaluate")]
    assert places.classify(inside).phase == places.OTHER
    assert places.classify([MAIN, Spot(TRAINER, 1, "evaluate")]).phase == places.EVALUATION
    assert places.classify([MAIN, Spot(TRAINER, 1, "_save_checkpoint")]).phase == places.CHECKPOINT


LIMIT = 300.0


def at(rank: int, phase: str, count: int = 8, step: int = 3, **more: Any) -> Position:
    """A rank that has stood for longer than the limit, unless it is said otherwise."""
    known = {places.BACKWARD: "backward", places.COLLECTIVE: "barrier", places.LOADER: "DataLoader.__next__"}
    what = more.pop("what", known.get(phase, "main"))
    fields = {"still": LIMIT + 5, "since": LIMIT + 6, **more}
    return Position(rank, step, {"0 group": count}, phase, what, "train.py:88", **fields)


def judged(*ranks: Position, absent: Tuple[gone.Absent, ...] = ()) -> Optional[verdict.Verdict]:
    return verdict.judge({each.rank: each for each in ranks}, list(absent), LIMIT)


SPINS: Any = {"what": places.GPU, "source": "loss.item()", "idle": False}


def test_ranks_that_all_wait_for_their_gpus_spin() -> None:
    """The network is down, or sizes differ: CUDA's waits use a processor, and nothing was said."""
    found = judged(*(at(rank, places.DEVICE, **SPINS) for rank in range(3)))
    assert found is not None and found.cause == words.NETWORK
    assert "ranks 0 to 2 wait for the GPU of step 3 (train.py:88: loss.item()) for 305 s" in found.text


def test_a_late_rank_that_spins_waits_for_its_gpu_or_computes() -> None:
    stands = at(1, places.DEVICE, count=7, what="_maybe_opt_step of amp/grad_scaler.py", idle=False)
    found = judged(at(0, places.DEVICE, **SPINS), stands)
    assert found is not None and (found.cause, found.ranks) == (words.SLOW, [1])
    assert "rank 1 has been in _maybe_opt_step of amp/grad_scaler.py (train.py:88) for 305 s" in found.text
    assert "rank 0 waits for the GPU of step 3" in found.text
    assert "It is waiting for its GPU, or computing" in found.text


def test_a_rank_that_sleeps_while_others_wait_for_their_gpus() -> None:
    found = judged(at(0, places.DEVICE, **SPINS), at(1, places.OTHER, count=7, what="main"))
    assert found is not None and found.ranks == [1] and "rank 0 waits for the GPU of step 3" in found.text


def test_ranks_that_stand_in_different_code_of_torch_are_in_no_different_calls() -> None:
    """They launch kernels into a queue that is full, and stand wherever that was."""
    one = at(0, places.DEVICE, what="forward of modules/linear.py")
    other = at(1, places.DEVICE, what="_multi_tensor_adam of optim/adam.py")
    found = judged(one, other)
    assert found is not None and found.cause == words.NETWORK
    assert "rank 0 waits for the GPU, or computes, in forward of modules/linear.py of step 3" in found.text


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        # What GPUs compute for long is no hang: each collective that was begun has ended.
        ((8, 8, 8), None),
        ((7, 7, 7), "The network between them, or tensor sizes that differ"),
        # Not known of each rank.
        ((8, 8, None), "The network between them, or tensor sizes that differ"),
        ((7, 6, 7), "rank 1 ended 1 call fewer than others. Check that GPU: nvidia-smi"),
        ((8, 6, 6), "ranks 1 and 2 ended 2 calls fewer than others. Check that GPU"),
    ],
)
def test_torchs_flight_recorder_tells_whose_gpu_is_behind(ended: Tuple[Any, ...], said: Optional[str]) -> None:
    found = judged(*(at(rank, places.DEVICE, ended=number, **SPINS) for rank, number in enumerate(ended)))
    assert found is None if said is None else found is not None and said in found.text, found
    if found is not None:
        behind = [rank for rank, number in enumerate(ended) if number != max(each or 0 for each in ended)]
        assert found.ranks == (behind if "fewer" in found.text else [])


def test_what_ranks_that_wait_for_no_gpu_have_ended_is_not_compared() -> None:
    """gloo ends a collective on one rank before it does on another."""
    assert judged(*(at(rank, places.BACKWARD, ended=8) for rank in range(2))) is not None


BARRIER: Any = {"what": "monitored_barrier", "call": "monitored_barrier"}


@pytest.mark.parametrize(
    "still, patience, is_said",
    [
        (LIMIT + 5, LIMIT + 60, False),
        # Its own time is up: somebody waits all the same.
        (LIMIT + 5, LIMIT, True),
        # So long a time is none that a program catches at the end of each epoch.
        (LIMIT + 5, 1800.0, True),
        (LIMIT + 5, None, True),
    ],
)
def test_a_barrier_that_gives_up_by_itself_is_no_hang(still: float, patience: Optional[float], is_said: bool) -> None:
    waits = [at(rank, places.COLLECTIVE, still=still, patience=patience, **BARRIER) for rank in (0, 2)]
    assert bool(judged(*waits, at(1, places.OTHER, 7, 2))) == is_said


def test_ranks_that_wait_elsewhere_are_judged_when_the_barrier_has_given_up() -> None:
    barrier = at(2, places.COLLECTIVE, patience=LIMIT + 60, **BARRIER)
    assert judged(at(0, places.BACKWARD), at(1, places.OTHER, 7, 2), barrier) is None
    assert judged(at(0, places.BACKWARD), at(1, places.OTHER, 7, 2), at(2, places.BACKWARD)) is not None


WAITS = (at(0, places.BACKWARD), at(2, places.BACKWARD))


@pytest.mark.parametrize(
    "late, cause",
    [
        (at(1, places.LOADER, 7, 2), words.LOADER),
        (at(1, places.EVALUATION, 7, 2), words.EVALUATION),
        (at(1, places.CHECKPOINT, 7, 2), words.SAVE),
        (at(1, places.DEBUGGER, 7, 2), words.DEBUGGER),
        (at(1, places.ENDED, 7, 2), words.UNEVEN),
        (at(1, places.OTHER, 7, 2), words.SLOW),
        (at(1, places.COLLECTIVE, 8, 2, call="all_reduce of 1 float32"), words.SOME_ONLY),
        (at(1, places.COLLECTIVE, 8, 2), words.MISMATCH),
    ],
)
def test_the_rank_that_is_behind_is_named_with_its_cause(late: Position, cause: str) -> None:
    found = judged(*WAITS, late)
    assert found is not None and (found.cause, found.ranks) == (cause, [1]), found
    assert "ranks 0 and 2 wait in all-reduce of step 3 (backward, train.py:88)" in found.text
    assert found.may_end == (cause != words.DEBUGGER)


def test_a_rank_that_is_past_its_data_is_told_from_one_that_computes() -> None:
    reading = [each._replace(loads=1) for each in WAITS]
    assert judged(*reading, at(1, places.OTHER, 7, 2)).cause == words.UNEVEN  # type: ignore[union-attr]
    assert judged(*reading, at(1, places.OTHER, 7, 2, loads=1)).cause == words.SLOW  # type: ignore[union-attr]


def test_ranks_that_are_gone_or_stopped_come_first() -> None:
    late = at(1, places.LOADER, 7, 2)
    for how in (gone.GONE, gone.STOPPED, gone.TRACED, gone.LEFT):
        found = judged(*WAITS, late, absent=(gone.Absent(3, how, "is not there"),))
        assert found is not None and found.ranks == [3] and "rank 3 is not there" in found.text, found
        assert found.may_end == (how != gone.TRACED)
    # Of one that is silent nothing is known: a rank that is late explains more.
    found = judged(*WAITS, late, absent=(gone.Absent(3, gone.SILENT, "does not answer"),))
    assert found is not None and found.ranks == [1]


def test_one_that_waits_for_another_group_is_not_the_late_one() -> None:
    """Ranks 0 and 1 wait for rank 2, which waits for rank 3, which reads."""
    ranks = [
        Position(rank, 3, counts, phase, what, "train.py:88", still=LIMIT + 1, since=LIMIT + 2)
        for rank, counts, phase, what in (
            (0, {"all": 5}, places.BACKWARD, "backward"),
            (1, {"all": 5}, places.BACKWARD, "backward"),
            (2, {"all": 4, "pair": 9}, places.COLLECTIVE, "all_gather"),
            (3, {"all": 4, "pair": 8}, places.LOADER, "DataLoader.__next__"),
        )
    ]
    found = judged(*ranks)
    assert found is not None and found.ranks == [3] and "rank 2 waits in all_gather" in found.text, found


def test_sizes_and_numbers_that_differ() -> None:
    calls = [f"all_reduce of {size} float32" for size in (1, 2, 1)]
    ranks = [at(rank, places.COLLECTIVE, what="all_reduce", call=call) for rank, call in enumerate(calls)]
    found = judged(*ranks)
    assert found is not None and found.ranks == [1] and "The calls differ in size" in found.text
    found = judged(at(0, places.BACKWARD, 9), at(1, places.BACKWARD), at(2, places.BACKWARD))
    assert found is not None and (found.cause, found.ranks) == (words.SOME_ONLY, [0])
    assert "torch counts 1 call more on rank 0 than on the others" in found.text


def test_what_is_only_slow_is_no_hang() -> None:
    # Nobody waits for as long as the limit.
    assert judged(at(0, places.BACKWARD, still=100.0), at(1, places.LOADER, 7, 2)) is None
    # All of them read, evaluate or save.
    for phase in (places.LOADER, places.EVALUATION, places.CHECKPOINT, places.OTHER):
        assert judged(at(0, phase), at(1, phase)) is None
    # All of them compute in a backward that has begun no collective.
    assert judged(at(0, places.BACKWARD, idle=False), at(1, places.BACKWARD, idle=False)) is None
    assert judged(at(0, places.BACKWARD, idle=False), at(1, places.LOADER)) is None
    # One has come into the same collective just now.
    assert judged(at(0, places.BACKWARD), at(1, places.BACKWARD, still=1.0)) is None


def test_all_wait_and_none_is_missing() -> None:
    found = judged(at(0, places.BACKWARD), at(1, places.BACKWARD))
    assert found is not None and (found.cause, found.ranks) == (words.NETWORK, [])


@pytest.mark.parametrize(
    "ranks, told",
    [
        ([3], "rank 3"),
        ([2, 0], "ranks 0 and 2"),
        ([0, 1, 2], "ranks 0 to 2"),
        ([0, 1, 3, 5, 6, 7], "ranks 0, 1, 3 and 5 to 7"),
    ],
)
def test_ranks_in_words(ranks: List[int], told: str) -> None:
    assert words.several(ranks) == told


def test_a_position_goes_through_the_store_as_text() -> None:
    position = at(1, places.LOADER, trouble="its loader worker 0 (process 12) is stopped (SIGSTOP)", batch=4, epoch=1)
    assert Position.load(position.dump()) == position


@pytest.mark.parametrize(
    ("step", "fields", "told"),
    [
        (12, {"batch": 5, "epoch": 2}, " since step 12, batch 5 of epoch 2"),
        (12, {"batch": 5}, " since step 12, batch 5"),
        (12, {"epoch": 2}, " since step 12, epoch 2"),
        (12, {"micro": 3}, " since step 12 (micro-batch 3)"),
        (12, {"micro": 3, "batch": 7, "epoch": 1}, " since step 12 (micro-batch 3), batch 7 of epoch 1"),
        (None, {"epoch": 2}, ""),
        (None, {"batch": 4, "epoch": 2}, ", batch 4 of epoch 2"),
    ],
)
def test_since_when_a_rank_is_late(step: Optional[int], fields: Dict[str, Any], told: str) -> None:
    assert words._since(Position(1, step, {}, places.LOADER, "x", "train.py:88", **fields)) == told


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="only Linux tells the state of a process")
def test_a_process_that_is_stopped_or_gone_is_told_by_the_system() -> None:
    code = "import time; print('sleeps', flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    who = processes.here()._replace(pid=child.pid)
    try:
        assert child.stdout is not None and child.stdout.readline() == b"sleeps\n"
        assert processes.in_words(processes.lasting(child.pid)) == ""
        os.kill(child.pid, 19)
        for _ in range(100):
            if processes.state_of(who) == processes.STOPPED:
                break
            time.sleep(0.02)
        assert "is stopped" in processes.own_trouble(threading.main_thread().native_id or 0)
    finally:
        child.kill()
    child.wait()
    assert processes.state_of(who) == processes.GONE
    assert processes.state_of(who._replace(space="elsewhere")) == ""


def test_only_a_wait_for_a_disk_that_lasts_is_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    letters = iter("DSDDSDDDS")
    monkeypatch.setattr(processes, "state", lambda pid, path: next(letters))
    assert [processes.lasting(1) for _ in range(4)] == ["S", "S", processes.DISK, "S"]


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
    tracker = Tracker(0, lambda: steps[0])
    tracker.look()
    steps[0] = 2
    assert tracker.look() == 0.0
    time.sleep(0.05)
    assert tracker.look() >= 0.05
    position = tracker.position()
    assert position.step == 2 and position.where.startswith("test_hang.py:") and position.since >= 0.05
    assert not tracker.may_wait() and not position.may_wait()


def test_a_look_is_cheap(tmp_path: Path) -> None:
    """Nothing runs in a step: of a look every two seconds, a step of a tenth of a second bears a twentieth."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        tracker = Tracker(0, lambda: None)
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
