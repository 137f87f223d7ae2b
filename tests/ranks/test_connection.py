"""A connection of our own to a store whose server has ended, as where the first rank is done before another came up."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import timedelta
from typing import Any, Iterator, Tuple

import pytest
from torch import distributed

from ddpfix.exchange import rendezvous
from ddpfix.exchange.connection import Connection, StoreLostError
from ddpfix.groups import internals
from tests.support.ranks import free_port

pytestmark = pytest.mark.patches("torch.failures", "torch.hang")
SERVER = (
    "import sys; from torch import distributed\n"
    "store = distributed.TCPStore('127.0.0.1', int(sys.argv[1]), None, True, wait_for_workers=False)\n"
    "print('up', flush=True); sys.stdin.read()\n"
)
# Seconds for which torch's own client tries.
LIMIT = 8.0


@pytest.fixture()
def served() -> Iterator[Tuple[subprocess.Popen[str], Any]]:
    port = free_port()
    command = [sys.executable, "-c", SERVER, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stdout.readline() == "up\n"
        limit = timedelta(seconds=LIMIT)
        yield server, distributed.TCPStore("127.0.0.1", port, None, False, limit, wait_for_workers=False)
        server.kill()


def test_it_is_another_one_until_the_server_ends(served: Tuple[Any, Any]) -> None:
    server, store = served
    connection = Connection(store)
    connection.store().set("key", "value")
    assert bytes(Connection(store, own=False).store().get("key")) == b"value"
    assert connection._clone is not None and connection.is_open()
    server.kill()
    server.wait()
    with pytest.raises(StoreLostError):
        connection.store()


@pytest.mark.sampled(inside=False, cells=True)
def test_torchs_own_client_waits_for_a_server_that_has_ended(served: Tuple[Any, Any]) -> None:
    server, store = served
    server.kill()
    server.wait()
    begun = time.monotonic()
    with pytest.raises(distributed.DistNetworkError):
        store.clone()
    assert time.monotonic() - begun >= LIMIT - 1


def test_nobody_waits_for_a_server_that_has_ended(served: Tuple[Any, Any]) -> None:
    server, store = served
    server.kill()
    server.wait()
    begun = time.monotonic()
    connection = Connection(store)
    assert time.monotonic() - begun < LIMIT / 2
    with pytest.raises(StoreLostError):
        connection.store()


def test_nobody_waits_for_one_that_ends_meanwhile(served: Tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    server, store = served

    class Late:
        """Its server ends between the look at it and the connection."""

        host, port = store.host, store.port

        def clone(self) -> Any:
            server.kill()
            server.wait()
            return store.clone()

    monkeypatch.setattr("ddpfix.exchange.connection.job", lambda store: store)
    late, begun = Late(), time.monotonic()
    connection = Connection(late)
    assert time.monotonic() - begun < LIMIT / 2
    with pytest.raises(StoreLostError):
        connection.store()


def of_torch(store: distributed.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a store that of a default group, as if torch had made it."""
    monkeypatch.setattr(distributed.distributed_c10d, "_get_default_store", lambda: store)
    monkeypatch.setattr(distributed.distributed_c10d, "_default_pg_init_method", "env://")
    monkeypatch.setattr(internals, "is_torchs", lambda group: True)


def test_a_store_that_is_gone_is_named(served: Tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    server, store = served
    # A server that dies before it has read what came resets the connection, and torch 2.0 ends this process then.
    store.set("read", "yes")
    store.get("read")
    of_torch(store, monkeypatch)
    monkeypatch.setattr(distributed, "get_rank", lambda *_: 0)
    rendezvous.announce()
    server.kill()
    server.wait(20)
    with pytest.raises(rendezvous.StoreFailedError, match=r"store does not answer \(.*DDPFIX=0 on every rank"):
        rendezvous.meet(rendezvous.Members("all", [0, 1], 0), {}, 7, 5.0)
