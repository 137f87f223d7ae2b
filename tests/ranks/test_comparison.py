"""On how many ranks the same was found, through a store: nobody waits for one that is gone, or for a store that is."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any, List

import pytest
from torch import distributed

from ddpfix.exchange import keys as store
from ddpfix.exchange import roll_call
from ddpfix.exchange.roll_call import Found

LIMIT = 0.3


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A store in the place of the process group's."""
    made = distributed.HashStore()
    made.set_timeout(timedelta(seconds=5))
    monkeypatch.setattr(roll_call, "default_store", lambda: made)
    monkeypatch.setattr(roll_call, "keys", lambda whole, name: distributed.PrefixStore(name, whole))
    assert store.has(made, "nothing") is False
    return made


def compared(texts: List[str], size: int) -> List[Any]:
    """What each of some ranks learns; the ranks without a text say nothing."""
    found: List[Any] = [None] * len(texts)

    def one(rank: int) -> None:
        found[rank] = roll_call.compare("step", size, texts[rank], LIMIT)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_on_how_many_ranks_it_is_the_same(shared: Any) -> None:
    assert compared(["a", "a", "a"], 3) == [Found(3, 3)] * 3


def test_a_rank_that_says_nothing_is_not_waited_for(shared: Any) -> None:
    begun = time.monotonic()
    assert compared(["a", "b", "b"], 4) == [Found(1, 4), Found(2, 4), Found(2, 4)]
    assert time.monotonic() - begun < LIMIT + 3


def test_a_store_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    class Silent:
        def add(self, key: str, count: int) -> int:
            over.wait(20)
            return 0

    monkeypatch.setattr(roll_call, "default_store", Silent)
    monkeypatch.setattr(roll_call, "keys", lambda whole, name: whole)
    begun = time.monotonic()
    try:
        assert roll_call.compare("step", 2, "a", LIMIT) is None
        assert time.monotonic() - begun < LIMIT + 5
    finally:
        over.set()


def test_a_store_that_is_lost_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(whole: Any, name: str) -> Any:
        raise ConnectionError("gone")

    monkeypatch.setattr(roll_call, "default_store", object)
    monkeypatch.setattr(roll_call, "keys", lost)
    assert roll_call.compare("step", 2, "a", LIMIT) is None
