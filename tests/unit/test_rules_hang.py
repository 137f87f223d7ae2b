"""From the positions of ranks to what is said of a job that hangs."""

from __future__ import annotations

import json
from typing import Any, Dict, Optional, Tuple

import pytest

from ddpfix.rules import facts
from ddpfix.rules.facts import Position
from ddpfix.rules.finding import Finding
from ddpfix.rules.hang import judge, sentences

LIMIT = 300.0


def at(rank: int, phase: str, count: int = 8, step: int = 3, **more: Any) -> Position:
    """A rank that has stood for longer than the limit, unless it is said otherwise."""
    known = {facts.BACKWARD: "backward", facts.COLLECTIVE: "barrier", facts.LOADER: "DataLoader.__next__"}
    what = more.pop("what", known.get(phase, "main"))
    fields = {"still": LIMIT + 5, "since": LIMIT + 6, **more}
    return Position(rank, step, {"0 group": count}, phase, what, "train.py:88", **fields)


def judged(*ranks: Position, absent: Tuple[facts.SilentRank, ...] = ()) -> Optional[Finding]:
    return judge.judge({each.rank: each for each in ranks}, list(absent), LIMIT)


SPINS: Any = {"what": facts.GPU, "source": "loss.item()", "idle": False}


def test_ranks_that_all_wait_for_their_gpus_spin() -> None:
    """The network is down, or sizes differ: CUDA's waits use a processor, and nothing was said."""
    found = judged(*(at(rank, facts.DEVICE, **SPINS) for rank in range(3)))
    assert found is not None and found.kind == sentences.NETWORK
    assert "ranks 0 to 2 wait for the GPU of step 3 (train.py:88: loss.item()) for 305 s" in found.text


def test_a_late_rank_that_spins_waits_for_its_gpu_or_computes() -> None:
    stands = at(1, facts.DEVICE, count=7, what="_maybe_opt_step of amp/grad_scaler.py", idle=False)
    found = judged(at(0, facts.DEVICE, **SPINS), stands)
    assert found is not None and (found.kind, found.ranks) == (sentences.SLOW, [1])
    assert "rank 1 has been in _maybe_opt_step of amp/grad_scaler.py (train.py:88) for 305 s" in found.text
    assert "rank 0 waits for the GPU of step 3" in found.text
    assert "It is waiting for its GPU, or computing" in found.text


def test_a_rank_that_sleeps_while_others_wait_for_their_gpus() -> None:
    found = judged(at(0, facts.DEVICE, **SPINS), at(1, facts.OTHER, count=7, what="main"))
    assert found is not None and found.ranks == [1] and "rank 0 waits for the GPU of step 3" in found.text


def test_ranks_that_stand_in_different_code_of_torch_are_in_no_different_calls() -> None:
    """They launch kernels into a queue that is full, and stand wherever that was."""
    one = at(0, facts.DEVICE, what="forward of modules/linear.py")
    other = at(1, facts.DEVICE, what="_multi_tensor_adam of optim/adam.py")
    found = judged(one, other)
    assert found is not None and found.kind == sentences.NETWORK
    assert "rank 0 waits for the GPU, or computes, in forward of modules/linear.py of step 3" in found.text


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
    waits = [at(rank, facts.COLLECTIVE, still=still, patience=patience, **BARRIER) for rank in (0, 2)]
    assert bool(judged(*waits, at(1, facts.OTHER, 7, 2))) == is_said


def test_ranks_that_wait_elsewhere_are_judged_when_the_barrier_has_given_up() -> None:
    barrier = at(2, facts.COLLECTIVE, patience=LIMIT + 60, **BARRIER)
    assert judged(at(0, facts.BACKWARD), at(1, facts.OTHER, 7, 2), barrier) is None
    assert judged(at(0, facts.BACKWARD), at(1, facts.OTHER, 7, 2), at(2, facts.BACKWARD)) is not None


WAITS = (at(0, facts.BACKWARD), at(2, facts.BACKWARD))


@pytest.mark.parametrize(
    "late, cause",
    [
        (at(1, facts.LOADER, 7, 2), sentences.LOADER),
        (at(1, facts.EVALUATION, 7, 2), sentences.EVALUATION),
        (at(1, facts.CHECKPOINT, 7, 2), sentences.SAVE),
        (at(1, facts.DEBUGGER, 7, 2), sentences.DEBUGGER),
        (at(1, facts.ENDED, 7, 2), sentences.UNEVEN),
        (at(1, facts.ENDED, 7), sentences.ABSENT),
        (at(1, facts.OTHER, 7, 2), sentences.SLOW),
        # Nothing is counted there.
        (at(1, facts.OTHER, 0, 2)._replace(counts={}), sentences.SLOW),
        (at(1, facts.COLLECTIVE, 8, 2, call="all_reduce of 1 float32"), sentences.SOME_ONLY),
        (at(1, facts.COLLECTIVE, 8, 2), sentences.MISMATCH),
        (at(1, facts.COLLECTIVE, 8, 2, what="recv", call="recv of 1 float32"), sentences.MISMATCH),
    ],
)
def test_the_rank_that_is_behind_is_named_with_its_cause(late: Position, cause: str) -> None:
    found = judged(*WAITS, late)
    assert found is not None and (found.kind, found.ranks) == (cause, [1]), found
    assert "ranks 0 and 2 wait in all-reduce of step 3 (backward, train.py:88)" in found.text
    assert found.may_end == (cause != sentences.DEBUGGER)


# The stack of a rank in a loop, in another line of its body, and behind it; and the same in a loop around that.
IN, ALSO_IN, BEHIND = (
    (("/home/train.py", "main", line, around),) for line, around in ((6, ((4, 8),)), (7, ((4, 8),)), (9, ()))
)
IN_EPOCH, BEHIND_IN_EPOCH = (
    (("/home/train.py", "main", line, around),) for line, around in ((6, ((2, 10), (4, 8))), (9, ((2, 10),)))
)
LATE_EPOCH = at(1, facts.EVALUATION, 7, 2, loops=BEHIND_IN_EPOCH)
PAST = "Rank 1 is past the loop of train.py:4, which ranks 0 and 2 are still in. "
EARLY = "Did the loop end earlier on some ranks"


@pytest.mark.parametrize(
    ("late", "waits", "cause", "said"),
    [
        (at(1, facts.EVALUATION, 7, 2, loops=BEHIND), {"loops": IN}, sentences.UNEVEN, PAST + EARLY),
        (at(1, facts.OTHER, 7, 2, loops=BEHIND), {"loops": IN, "loads": 1}, sentences.UNEVEN, PAST + "Uneven data?"),
        (at(1, facts.COLLECTIVE, 8, 2, loops=BEHIND), {"loops": IN}, sentences.UNEVEN, PAST + EARLY),
        # In an epoch that may be another one, or is the same.
        (LATE_EPOCH, {"loops": IN_EPOCH}, sentences.EVALUATION, "on some ranks"),
        (LATE_EPOCH._replace(epoch=1), {"loops": IN_EPOCH, "epoch": 2}, sentences.EVALUATION, "on some ranks"),
        (LATE_EPOCH._replace(epoch=1), {"loops": IN_EPOCH, "epoch": 1}, sentences.UNEVEN, PAST + EARLY),
        # In the body of the loop that the others are in, the end of the loop is no cause.
        (
            at(1, facts.COLLECTIVE, call="barrier", loops=ALSO_IN),
            {"loops": IN},
            sentences.SOME_ONLY,
            "Call it on all ranks",
        ),
        (at(1, facts.COLLECTIVE, 8, 2, call="c", loops=ALSO_IN), {"loops": IN}, sentences.SOME_ONLY, "on all ranks"),
        (at(1, facts.COLLECTIVE, 8, 2, call="barrier"), {}, sentences.SOME_ONLY, f"or on none.\n{EARLY}"),
        # By its step, or in the same step by the loaders of the others, in a loop that evaluates by no name.
        (at(1, facts.COLLECTIVE, 8, 2, call="barrier"), {"loads": 1}, sentences.UNEVEN, "left the loop over the data"),
        (at(1, facts.COLLECTIVE, call="barrier"), {"loads": 1}, sentences.UNEVEN, "1 left the loop over the data"),
        (
            at(1, facts.COLLECTIVE, call="barrier"),
            {"loads": 1, "loops": (("/home/train.py", "validate", 6, ()),)},
            sentences.SOME_ONLY,
            "Call it on all ranks",
        ),
    ],
)
def test_a_rank_past_the_loop_of_the_others(late: Position, waits: Dict[str, Any], cause: str, said: str) -> None:
    found = judged(*(each._replace(**waits) for each in WAITS), late)
    assert found is not None and (found.kind, found.ranks) == (cause, [1]) and said in found.text, found
    assert EARLY not in found.text or EARLY in said


@pytest.mark.parametrize(
    ("phase", "how", "said"),
    [
        (facts.LOADER, {"moving": True}, "It is moving: late, not stuck. Its data is slow to read"),
        (facts.LOADER, {"trouble": "its loader worker 0 (process 12) has ended"}, "worker is dead or stopped"),
        (facts.LOADER, {"trouble": "its 2 loader workers are alive"}, "worker is stuck, or reads from a slow file"),
        (facts.LOADER, {}, "It is not moving. Its data loading is stuck, or reads from a slow file system"),
        (facts.EVALUATION, {"what": "validate"}, "rank 1 has been in evaluation, validate (train.py:88) for 305 s"),
        (facts.EVALUATION, {"what": "forward in evaluation mode"}, "rank 1 has been in forward in evaluation mode (tr"),
    ],
)
def test_what_a_late_rank_does(phase: str, how: Dict[str, Any], said: str) -> None:
    found = judged(*WAITS, at(1, phase, 7, 2, **how))
    assert found is not None and said in found.text, found


def test_a_call_of_one_rank_long_before_is_named() -> None:
    counts = [{"log (train.py:5)": 1, "train.py:7": 20}, {"train.py:7": 20, "train.py:9": 1}]
    lines = ["train.py:7", "train.py:9"]
    called = [facts.Called(counts[rank], lines[rank]) for rank in (0, 1)]
    found = judged(*(at(rank, facts.COLLECTIVE, call=f"call {rank}", called=called[rank]) for rank in (0, 1)))
    assert found is not None and (found.kind, found.ranks) == (sentences.SOME_ONLY, [0])
    assert "Rank 0 has begun one collective more, at log (train.py:5). Call it on all ranks or on none" in found.text


SKIPPED, MISSED = facts.TrainingProgress(12, 11, 1, "train.py:41"), facts.TrainingProgress(12, 12, missed=True)


@pytest.mark.parametrize(
    ("late", "kind", "said"),
    [
        (at(1, facts.COLLECTIVE, 7, 12, work=SKIPPED), sentences.BACKWARDS, "rank 1 skipped one near train.py:41."),
        (at(1, facts.OTHER, 7, 12, work=MISSED), sentences.BACKWARDS, "no gradient reached the model after its last"),
        # Of a backward that runs, gradients may still come.
        (at(1, facts.BACKWARD, 7, 12, work=MISSED), sentences.SOME_ONLY, "torch counts 1 call fewer on rank 1"),
    ],
)
def test_backwards_that_ranks_do_not_call_equally_often_are_the_cause(late: Position, kind: str, said: str) -> None:
    waits = [at(rank, facts.BACKWARD, step=12, work=facts.TrainingProgress(12, 12)) for rank in (0, 2)]
    found = judged(*waits, late)
    assert found is not None and found.kind == kind and said in found.text, found


def test_a_rank_that_has_come_out_of_the_collective_of_the_others() -> None:
    found = judged(at(0, facts.COLLECTIVE, call="all_reduce of 2 float32"), at(1, facts.OTHER))
    assert found is not None and (found.kind, found.ranks) == (sentences.MISMATCH, [1]), found
    assert "torch counts equally many calls on each of them.\nDo sizes or kinds differ?" in found.text


def test_ranks_that_nobody_waits_for_are_left_out() -> None:
    """Rank 0 receives from rank 1, which computes; rank 2 is gone, and nobody needs it."""
    receives = at(0, facts.COLLECTIVE, what="recv", call="recv of 1 float32 from rank 1", peer=1)
    found = judged(receives, at(1, facts.OTHER), absent=(facts.SilentRank(2, facts.GONE, "process 7 on x"),))
    assert found is not None and (found.kind, found.ranks) == (sentences.SLOW, [1]), found
    assert "rank 0 waits in recv of 1 float32 from rank 1" in found.text


def test_of_many_late_ranks_some_are_told() -> None:
    found = judged(at(9, facts.WRAPPER, what="DDP's forward"), *(at(rank, facts.OTHER, 7) for rank in range(6)))
    assert found is not None and found.text.count("rank ") >= 4 and "not waiting either: ranks 3 to 5;" in found.text
    assert "rank 9 waits in DDP's forward of step 3 (train.py:88)" in found.text
    # Of late ranks, the one in a debugger is the cause.
    found = judged(*WAITS, at(1, facts.LOADER, 7, 2), at(3, facts.DEBUGGER, 7, 2))
    assert found is not None and (found.kind, found.ranks) == (sentences.DEBUGGER, [3]), found


def test_a_rank_that_is_past_its_data_is_told_from_one_that_computes() -> None:
    reading = [each._replace(loads=1) for each in WAITS]
    assert judged(*reading, at(1, facts.OTHER, 7, 2)).kind == sentences.UNEVEN  # type: ignore[union-attr]
    assert judged(*reading, at(1, facts.OTHER, 7, 2, loads=1)).kind == sentences.SLOW  # type: ignore[union-attr]


def test_ranks_that_are_gone_or_stopped_come_first() -> None:
    late = at(1, facts.LOADER, 7, 2)
    for how, said in (
        (facts.GONE, "ended without a word: process 7 on x has exited"),
        (facts.STOPPED, "is stopped (SIGSTOP): process 7 on x"),
        (facts.TRACED, "is held by a debugger: process 7 on x"),
        (facts.LEFT, "has reached the end of its program after step 3"),
    ):
        end = facts.End(3, facts.ENDED, step=3) if how == facts.LEFT else None
        found = judged(*WAITS, late, absent=(facts.SilentRank(3, how, "process 7 on x", end=end),))
        assert found is not None and (found.kind, found.ranks) == (sentences.ABSENT, [3]), found
        assert f"rank 3 {said}" in found.text, found.text
        assert found.may_end == (how != facts.TRACED)
    found = judged(*WAITS, absent=tuple(facts.SilentRank(rank, facts.GONE, "process 7 on x") for rank in range(3, 7)))
    assert found is not None and found.text.count("has exited") == 3 and "; likewise rank 6;" in found.text, found
    # Of one that is silent nothing is known: a rank that is late explains more.
    found = judged(*WAITS, late, absent=(facts.SilentRank(3, facts.SILENT, "process 7 on x"),))
    assert found is not None and found.ranks == [1]


REACHED = "has reached the end of its program after step"


def silent(process: str = "", end: Optional[facts.End] = None) -> facts.SilentRank:
    return facts.SilentRank(3, facts.SILENT if end is None else facts.LEFT, process, end=end)


@pytest.mark.parametrize(
    ("absent", "kind", "told"),
    [
        (silent(), sentences.ABSENT, "rank 3 does not answer: ddpfix is not active there"),
        (silent("process 7 on x"), sentences.ABSENT, "rank 3 does not answer: process 7 on x"),
        (silent(end=facts.End(3, facts.LEFT)), sentences.ABSENT, "rank 3 has left its process"),
        (silent(end=facts.End(3, facts.FAILED, "rank 3 failed: E")), sentences.ABSENT, "rank 3 has failed;"),
        (silent(end=facts.End(3, facts.EXITED, step=2)), sentences.UNEVEN, f"rank 3 {REACHED} 2;"),
    ],
)
def test_a_rank_that_does_not_answer(absent: facts.SilentRank, kind: str, told: str) -> None:
    found = judged(*WAITS, absent=(absent,))
    assert found is not None and (found.kind, found.ranks) == (kind, [3]) and told in found.text, found


def test_one_that_waits_for_another_group_is_not_the_late_one() -> None:
    """Ranks 0 and 1 wait for rank 2, which waits for rank 3, which reads."""
    ranks = [
        Position(rank, 3, counts, phase, what, "train.py:88", still=LIMIT + 1, since=LIMIT + 2)
        for rank, counts, phase, what in (
            (0, {"all": 5}, facts.BACKWARD, "backward"),
            (1, {"all": 5}, facts.BACKWARD, "backward"),
            (2, {"all": 4, "pair": 9}, facts.COLLECTIVE, "all_gather"),
            (3, {"all": 4, "pair": 8}, facts.LOADER, "DataLoader.__next__"),
        )
    ]
    found = judged(*ranks)
    assert found is not None and found.ranks == [3] and "rank 2 waits in all_gather" in found.text, found


def test_sizes_and_numbers_that_differ() -> None:
    calls = [f"all_reduce of {size} float32" for size in (1, 2, 1)]
    ranks = [at(rank, facts.COLLECTIVE, what="all_reduce", call=call) for rank, call in enumerate(calls)]
    found = judged(*ranks)
    assert found is not None and found.ranks == [1] and "The calls differ in size" in found.text
    found = judged(at(0, facts.BACKWARD, 9), at(1, facts.BACKWARD), at(2, facts.BACKWARD))
    assert found is not None and (found.kind, found.ranks) == (sentences.SOME_ONLY, [0])
    assert "torch counts 1 call more on rank 0 than on the others" in found.text
    found = judged(at(0, facts.BACKWARD, 9, step=4), at(1, facts.BACKWARD), at(2, facts.BACKWARD))
    assert found is not None and (found.kind, found.ranks) == (sentences.MISMATCH, [0])


def test_what_is_only_slow_is_no_hang() -> None:
    # Nobody waits for as long as the limit.
    assert judged(at(0, facts.BACKWARD, still=100.0), at(1, facts.LOADER, 7, 2)) is None
    # All of them read, evaluate or save.
    for phase in (facts.LOADER, facts.EVALUATION, facts.CHECKPOINT, facts.OTHER):
        assert judged(at(0, phase), at(1, phase)) is None
    # All of them compute in a backward that has begun no collective.
    assert judged(at(0, facts.BACKWARD, idle=False), at(1, facts.BACKWARD, idle=False)) is None
    assert judged(at(0, facts.BACKWARD, idle=False), at(1, facts.LOADER)) is None
    # One has come out of the collective of the others for a moment only.
    assert judged(at(0, facts.COLLECTIVE, call="all_reduce of 2 float32"), at(1, facts.OTHER, since=99.0)) is None
    # One has come into the same collective just now.
    assert judged(at(0, facts.BACKWARD), at(1, facts.BACKWARD, still=1.0)) is None


def test_a_rank_that_can_ask_nobody_tells_where_it_waits() -> None:
    found = sentences.describe_alone(at(1, facts.COLLECTIVE), "the store does not answer (RuntimeError)")
    assert (found.kind, found.ranks, found.may_end) == (sentences.ALONE, [1], False)
    assert (
        found.text == "rank 1 has waited in barrier (train.py:88) for 305 s; the store does not answer (RuntimeError)"
    )


def test_all_wait_and_none_is_missing() -> None:
    found = judged(at(0, facts.BACKWARD), at(1, facts.BACKWARD))
    assert found is not None and (found.kind, found.ranks) == (sentences.NETWORK, [])


@pytest.mark.parametrize(
    ("step", "fields", "told"),
    [
        (12, {"batch": 5, "epoch": 2}, " since step 12, batch 5 of epoch 2"),
        (12, {"batch": 5}, " since step 12, batch 5"),
        (12, {"epoch": 2}, " since step 12, epoch 2"),
        (None, {"epoch": 2}, ""),
        (None, {"batch": 4, "epoch": 2}, ", batch 4 of epoch 2"),
    ],
)
def test_since_when_a_rank_is_late(step: Optional[int], fields: Dict[str, Any], told: str) -> None:
    assert sentences._since(Position(1, step, {}, facts.LOADER, "x", "train.py:88", **fields)) == told


def test_a_position_goes_through_the_store_as_text() -> None:
    position = at(1, facts.LOADER, trouble="its loader worker 0 (process 12) is stopped (SIGSTOP)", batch=4, epoch=1)
    position = position._replace(loops=(("train.py", "main", 8, ((3, 9),)),))
    assert Position.load(json.loads(json.dumps(position))) == position
