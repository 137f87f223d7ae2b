"""How far a program is by its own count is read from its functions, of which nothing is changed or kept alive."""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any, Callable, Dict, List, Optional, Tuple

import pytest

from ddpfix.ranks.hang import places, words
from ddpfix.ranks.hang.position import Position
from ddpfix.ranks.hang.progress import Progress, of


def here() -> List[FrameType]:
    """The stack, down to the caller of this."""
    frame: Optional[FrameType] = sys._getframe(1)
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found[::-1]


class Tensor:
    """Something that is to be freed."""


def test_the_innermost_function_that_knows_is_asked() -> None:
    def inner(batch_idx: int) -> Progress:
        return of(here())

    def outer(current_epoch: int) -> Progress:
        epoch, step = 4, 99
        assert (epoch, step) != (current_epoch, 0)
        return inner(17)

    assert outer(3) == Progress(4, "batch_idx 17")


def test_a_number_that_was_handed_on_yields_to_the_one_that_is_counted() -> None:
    """Lightning 2.0 hands on batch_idx 0 where training_step takes none."""

    class Kept:
        batch_idx = 0

    def optimizer_step(epoch: int, batch_idx: int) -> Progress:
        Kept.batch_idx = batch_idx + epoch
        return of(here())

    def advance(epoch: int) -> Progress:
        batch_idx = 17
        return optimizer_step(epoch, 0 * batch_idx)

    def goes_on(batch_idx: int) -> Progress:
        # An argument that is counted up.
        batch_idx += 1
        return of(here())

    def outer(of_inner: Callable[[int], Progress]) -> Progress:
        batch_idx = 90
        return of_inner(batch_idx - 85)

    assert advance(2) == Progress(2, "batch_idx 17")
    assert outer(goes_on) == Progress(None, "batch_idx 6")
    assert outer(advance) == Progress(5, "batch_idx 17")


def test_attributes_of_a_trainer() -> None:
    class Holder:
        def __init__(self, **own: Any) -> None:
            vars(self).update(own)

    class Trainer(Holder):
        def fit(self) -> Progress:
            return of(here())

    assert Trainer(current_epoch=2, step=8, batch_idx=3.0).fit() == Progress(2, "step 8")
    assert Trainer(epoch=True, step="8").fit() == Progress()
    progress = Holder(current=Holder(processed=5))
    assert Trainer(epoch_progress=progress, batch_idx=4).fit() == Progress(5, "batch_idx 4")
    assert Trainer(epoch_progress=None).fit() == Progress()


def test_no_code_of_the_program_runs() -> None:
    class Trainer:
        @property
        def current_epoch(self) -> int:
            raise AssertionError("asked")

        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

        def fit(self) -> Progress:
            return of(here())

    assert Trainer.fit(Trainer()) == Progress()


# An assert that pytest has rewritten uses ``locals``: there are none in functions that are looked at.


def test_nothing_is_kept_alive() -> None:
    """Before Python 3.13 a frame keeps the copy of its variables that it gives out."""

    def train(epoch: int) -> Any:
        loss = Tensor()
        seen = weakref.ref(loss)
        found = of(here())
        del loss
        return found.epoch, seen()

    assert train(1) == (1, None)


def test_what_a_program_holds_of_its_variables_stays_as_it_is() -> None:
    def train(epoch: int, rate: float) -> Tuple[Progress, Dict[str, Any]]:
        config = locals()
        batch_idx = 3
        return of(here()), {**config, "is": batch_idx}

    found, config = train(2, 0.1)
    assert config == {"epoch": 2, "rate": 0.1, "is": 3}
    assert (found.epoch is None) == (sys.version_info < (3, 13))

    def held(epoch: int) -> Any:
        config = sys._getframe().f_locals
        before = dict(config)
        found = of(here())
        # From 3.13 on it is a view of all variables, this one among them.
        names = ("epoch",) if sys.version_info >= (3, 13) else tuple(before)
        return found.epoch, {name: before[name] for name in names}, {name: config[name] for name in names}

    assert held(7) == (7, {"epoch": 7}, {"epoch": 7})


def test_a_method_of_a_builtins_name_gives_out_nothing() -> None:
    """``model.eval()`` stands in many loops."""

    class Model:
        def eval(self) -> None:
            pass

    def train(epoch: int) -> Progress:
        model, batch_idx = Model(), 4
        model.eval()
        return of(here()) if batch_idx else Progress()

    assert train(2) == Progress(2, "batch_idx 4")

    def evaluated(epoch: int) -> Progress:
        return of(here()) if eval("epoch") else Progress()

    assert (evaluated(2).epoch is None) == (sys.version_info < (3, 13))


def test_a_function_that_a_debugger_traces_is_left_alone() -> None:
    def train(epoch: int) -> Progress:
        return of(here())

    before = sys.gettrace()
    sys.settrace(lambda *_: lambda *_: None)  # type: ignore[arg-type,return-value]
    try:
        found = train(3)
    finally:
        sys.settrace(before)
    assert found.epoch is None


@pytest.mark.parametrize(
    "fields, told",
    [
        ({"batch": 5, "epoch": 2}, " since step 12, batch 5 of epoch 2"),
        ({"counter": "batch_idx 4", "epoch": 0}, " since step 12, batch_idx 4 of epoch 0"),
        ({"batch": 5, "counter": "step 4"}, " since step 12, batch 5"),
        ({"epoch": 2}, " since step 12, epoch 2"),
        ({"micro": 3}, " since step 12 (micro-batch 3)"),
        ({"micro": 3, "batch": 7, "epoch": 1}, " since step 12 (micro-batch 3), batch 7 of epoch 1"),
        ({"step": None, "epoch": 2}, ""),
        ({"step": None, "counter": "step 4", "epoch": 2}, ", step 4 of epoch 2"),
    ],
)
def test_it_is_told(fields: Dict[str, Any], told: str) -> None:
    known = {"step": 12, **fields}
    late = Position(1, known.pop("step"), {}, places.LOADER, "x", "train.py:88", **known)
    assert words._since(late) == told
    assert Position.load(late.dump()) == late
