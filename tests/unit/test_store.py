"""Keys in the process group's store, and how a rank waits for what others put there."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Callable, List, Optional, Sequence, Tuple, TypeVar

import pytest
from torch import distributed

from ddpfix.exchange import keys as ours
from ddpfix.exchange import rendezvous, roll_call

T = TypeVar("T")


class Old:
    """A store as torch had it before 2.1: it cannot check whether a key is there."""

    def __init__(self) -> None:
        self._store = distributed.HashStore()
        self.set, self.add, self.get = self._store.set, self._store.add, self._store.get


@pytest.mark.parametrize("make", [distributed.HashStore, Old], ids=["check", "before 2.1"])
def test_what_was_put_is_there(make: Any) -> None:
    store = make()
    assert not ours.has(store, "key")
    ours.put(store, "key", "value")
    assert ours.has(store, "key") and not ours.has(store, "other")
    assert bytes(store.get("key")) == b"value"


def test_groups_and_restarts_do_not_read_each_others_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    server = distributed.HashStore()
    monkeypatch.setattr(ours, "is_programs", lambda: False)
    monkeypatch.setattr(distributed, "get_rank", lambda *_: 0)
    for restart in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restart)
        for _ in range(2):
            # Each group has a store object of its own, for the same server.
            group = distributed.PrefixStore("", server)
            assert not ours.has(ours.keys(group, "name"), "key")
            ours.put(ours.keys(group, "name"), "key", "value")
            assert ours.has(ours.keys(group, "name"), "key")
            assert [ours.count(group, "a"), ours.count(group, "a"), ours.count(group, "b")] == [0, 1, 0]
            assert ours.is_here(group, 0) and not ours.is_here(group, 1)
    assert ours.count(None, "a") == 0


def test_it_looks_until_something_is_found_or_given_up() -> None:
    answers = iter((False, False, True))
    assert ours.look_until(lambda: next(answers), lambda waited: False, (0.001, 0.002))
    waits: List[float] = []

    def give_up(waited: float) -> bool:
        waits.append(waited)
        return waited > 0.1

    assert not ours.look_until(lambda: False, give_up, (0.01, 0.02))
    assert waits == sorted(waits) and len(waits) < 15
    # What comes at the last moment counts.
    last = iter((False, True))
    assert ours.look_until(lambda: next(last), lambda waited: True, (0.001, 0.002))


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store in the place of the process group's."""
    made = distributed.HashStore()
    made.set_timeout(timedelta(seconds=5))
    monkeypatch.setattr(roll_call, "default_store", lambda: made)
    monkeypatch.setattr(roll_call, "keys", lambda whole, name: distributed.PrefixStore(name, whole))


def of_ranks(rank: Callable[[Any], T], each: Sequence[Any]) -> List[T]:
    """What a function returns on each rank, in a thread of its own."""
    with ThreadPoolExecutor(len(each)) as pool:
        return list(pool.map(rank, each))


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize(
    "comes, expected", [((True, True, True), True), ((True, True, None), False), ((True, True, False), False)]
)
def test_all_ranks_get_the_same_answer_whether_all_come(comes: Tuple[Any, ...], expected: bool) -> None:
    """A rank comes (True), refuses (False) or stays away (None); who comes later gets the answer, too."""

    def rank(comes: bool) -> Optional[bool]:
        if comes:
            return roll_call.all_come("place", range(3), 0.3)
        roll_call.refuse("place", range(3))
        return None

    found = of_ranks(rank, [each for each in comes if each is not None])
    late = comes[2] is None and roll_call.all_come("place", range(3), 0.3)
    assert ([each for each in found if each is not None], late) == ([expected] * sum(map(bool, comes)), False)


# On how many ranks the same was found: nobody waits for one that is gone, or for a store that is.
LIMIT = 0.3


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize(
    ("texts", "same", "size"), [(["a", "a", "a"], [3, 3, 3], 3), (["a", "b", "b"], [1, 2, 2], 4), (["a"], [1], 2)]
)
def test_on_how_many_ranks_it_is_the_same(texts: List[str], same: List[int], size: int) -> None:
    begun = time.monotonic()
    found = of_ranks(lambda text: roll_call.compare("step", size, text, LIMIT), texts)
    assert found == [roll_call.Found(number, size) for number in same]
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


def test_a_wait_of_the_store_itself_keeps_other_threads_from_it() -> None:
    """Why a rank polls: a rank that waits has to read keys of the store, and to write its own, all the time."""
    server = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = distributed.TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)

    def blocked(wait: Any) -> Tuple[float, bool]:
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.2)
        begun = time.monotonic()
        client.add("cause", 1)
        taken, still = time.monotonic() - begun, thread.is_alive()
        thread.join()
        return taken, still

    def theirs() -> None:
        with pytest.raises(RuntimeError):
            client.wait(["never"], timedelta(seconds=2))

    def mine() -> None:
        ours.look_until(lambda: ours.has(client, "never"), lambda waited: waited > 2, (0.001, 0.05))

    assert blocked(theirs)[0] > 1
    taken, still = blocked(mine)
    assert taken < 1 and still


class Plain(distributed.Store):
    """A store of a program's own: torch needs no more methods than these."""

    def __init__(self) -> None:
        super().__init__()
        self._store = distributed.HashStore()

    def set(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        return bytes(self._store.get(key))

    def add(self, key: str, number: int) -> int:
        return int(self._store.add(key, number))


@pytest.mark.parametrize("is_programs", [True, False])
def test_a_store_without_what_ranks_need_is_asked_nothing(is_programs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base class of all stores has each method, and raises in it."""
    store = Plain()
    monkeypatch.setattr(ours, "group_store", lambda: store)
    monkeypatch.setattr(ours, "is_programs", lambda: is_programs)
    ours.enter(store)
    assert ours.passing_store() is None and ours.default_store() is None and not ours.can_ask()
    assert ours.count(store, "name") == 0
    ours.remember(store, "name", 5)
    assert ours.remembered(store, "name") is None
    assert roll_call.RollCall("name", [0, 1]).same("word")
    assert rendezvous.meet(rendezvous.Members("all", [0, 1], 0), {}, 7, 1.0) is None


@pytest.mark.skipif(not hasattr(distributed.Store, "check"), reason="torch could not check whether a key is there")
def test_nothing_stays_in_a_store_of_the_programs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    server = distributed.HashStore()
    stores = threading.local()
    monkeypatch.setattr(ours, "group_store", lambda: stores.own)
    monkeypatch.setattr(ours, "is_programs", lambda: True)

    def rank(number: int) -> Any:
        stores.own = distributed.PrefixStore("", server)
        for _ in range(2):
            # The next group may have the same object: it begins to count anew.
            ours.enter(stores.own)
            assert ours.count(stores.own, "name") == 0
        calls = roll_call.RollCall("name", [0, 1])
        seed = rendezvous.meet(rendezvous.Members("all", [0, 1], number), {"a": "b"}, 7 + number, 20.0)
        return seed, calls.same("yes"), calls.same("yes"), calls.same(f"rank {number}"), ours.default_store()

    assert of_ranks(rank, range(2)) == [(7, True, True, False, None)] * 2
    assert server.num_keys() == 0
