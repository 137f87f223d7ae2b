"""A rank that ended with an error is not waited for by ddpfix where no launcher ends the others (jobs of a shell)."""

from __future__ import annotations

import sys
import threading
import time

import pytest
from torch import distributed

from ddpfix.exchange import rendezvous
from ddpfix.exchange.connection import Connection
from ddpfix.exchange.failure_records import Records
from ddpfix.monitor.exit.process_end import ProcessEnd
from ddpfix.monitor.watch import Rank
from ddpfix.rules.facts import UNDONE
from tests.ranks.test_connection import of_torch
from tests.support.ranks import of_a_shell, side_by_side

pytestmark = pytest.mark.patches("torch.agreement")

SCRIPT = """
import os, sys, time
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group("gloo")
first = DistributedDataParallel(torch.nn.Linear(2, 2))
if distributed.get_rank() == int(sys.argv[1]):
    raise ValueError("the data of this rank is broken")
time.sleep(1)
DistributedDataParallel(torch.nn.Linear(2, 2))
"""


@pytest.mark.sampled(inside=False, cells=True)
@pytest.mark.parametrize("failing", [0, 1])
def test_it_is_named_and_nobody_waits(failing: int) -> None:
    begun = time.monotonic()
    command = [sys.executable, "-c", SCRIPT, str(failing)]
    printed = [each.errors for each in side_by_side([command] * 3, of_a_shell(3, {"DDPFIX": "1"}), limit=40)]
    assert time.monotonic() - begun < 40
    assert "the data of this rank is broken" in printed[failing]
    others = [text for rank, text in enumerate(printed) if rank != failing]
    assert all("Error" in text for text in others)
    if failing == 1:
        # Rank 0 holds the store: if it has ended, the store itself reports it.
        named = "rank 1 ended with an error before this model was wrapped there"
        assert all(f"AgreementError: {named}" in text for text in others), others


def test_what_happened_before_a_restart_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of the user's own outlives the ranks; the restarted ones are waited for, although one ended before."""
    store = distributed.HashStore()
    of_torch(store, monkeypatch)
    monkeypatch.setattr(distributed, "get_rank", lambda *_: 1)
    monkeypatch.setattr(sys, "last_value", ValueError("before the restart"), raising=False)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    rendezvous.announce()
    rendezvous.announce_end()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    first = meeting_of(0, store, monkeypatch)
    assert first._missing([1]) == [1], "the mark of the earlier start is not one of this"
    # It looks at who has ended once it has waited for some seconds.
    late = threading.Timer(4.0, meeting_of(1, store, monkeypatch).hold, (5,))
    late.start()
    try:
        assert first.hold(7) == 7
    finally:
        late.join()


def meeting_of(rank: int, store: distributed.Store, monkeypatch: pytest.MonkeyPatch) -> rendezvous._Rendezvous:
    """A meeting of two ranks in one process; each rank has a store object of its own."""
    monkeypatch.setattr(distributed, "get_rank", lambda *_: rank)
    return rendezvous._Rendezvous(distributed.PrefixStore("", store), rendezvous.Members("all", [0, 1], rank), {}, 60.0)


def test_a_rank_that_undoes_ddpfix_is_not_taken_for_one_that_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    store = distributed.HashStore()
    monkeypatch.setattr(distributed, "get_rank", lambda *_: 0)
    others = Records(Connection(store, own=False).store, 1)
    watching = ProcessEnd(store, Rank(0, 2, lambda: 3))
    watching.begin()
    try:
        begun = time.monotonic()
        while not others.alive([0]) and time.monotonic() - begun < 20:
            time.sleep(0.01)
        assert others.alive([0])
    finally:
        watching.end(UNDONE)
    assert not others.alive([0]) and others.number_of_ends() == 0
