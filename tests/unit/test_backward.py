"""What a backward tells models, while another thread or the collector shortens the lists of them."""

from __future__ import annotations

import threading
from typing import Any, Callable, List

from ddpfix.patches.torch.pipeline.backward import Backwards
from ddpfix.patches.torch.unused import states


class Model:
    """One that is to exchange something after a backward, and trains in a thread."""

    is_due = True

    def __init__(self, order: str, settled: List[str], asked: Callable[[], int] = threading.get_ident) -> None:
        self.order, self._settled, self._asked = order, settled, asked

    @property
    def thread(self) -> int:
        return self._asked()

    def settle(self) -> None:
        self._settled.append(self.order)


def test_a_model_of_another_thread_that_goes_meanwhile_hides_none_of_this_one() -> None:
    """Two threads that end their backwards at once: one rank would exchange what the other one has passed over."""
    settled: List[str] = []
    backwards = Backwards()

    def ends_now() -> int:
        if other in backwards._unsettled:
            backwards._unsettled.remove(other)
        return -1

    other = Model("other", settled, ends_now)
    for model in (other, Model("b", settled), Model("a", settled)):
        backwards.settle_after(model)
    backwards._settle()
    assert settled == ["a", "b"] and not backwards._unsettled


def test_a_reduction_that_goes_meanwhile_hides_no_other(monkeypatch: Any) -> None:
    class Waiting:
        def __init__(self) -> None:
            self.state = states.ARMED

    first, second = Waiting(), Waiting()
    known: List[Any] = []

    def going() -> Any:
        known.remove(going)

    known += [going, lambda: first, lambda: second]
    monkeypatch.setattr(states, "_ALL", known)
    assert states.reductions() == [first, second] and len(known) == 2
    known.insert(0, going)
    assert not states.all_finalized()
    states.discard(second)  # type: ignore[arg-type]
    assert states.reductions() == [first]
