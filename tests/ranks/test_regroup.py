"""Processes leave their process group and join another one: their ranks agree there as in the first."""

from __future__ import annotations

import contextlib
import datetime
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest
from torch import distributed

from tests.support import ranks
from tests.support.ranks import free_port

pytestmark = [pytest.mark.patches("torch.agreement"), pytest.mark.sampled(inside=False, cells=True)]

SCRIPT = Path(__file__).with_name("regroup.py")
# Seconds; an agreement that does not come about takes longer than any of these tests.
LIMIT = 150
Stage = Dict[str, Any]


def joined(plans: List[List[Stage]]) -> List[List[List[int]]]:
    """The seeds that each process got in each of its groups; ``plans`` holds the groups of each."""
    commands = [[sys.executable, str(SCRIPT), json.dumps({"groups": groups, "found": []})] for groups in plans]
    ended = ranks.side_by_side(commands, [ranks.environment({"DDPFIX": "1"})] * len(plans), limit=LIMIT)
    for each in ended:
        assert each.code == 0, each.errors
    return [json.loads(each.output.splitlines()[-1]) for each in ended]


def groups_of(ranks: List[int], **more: Any) -> List[Stage]:
    """One process's groups, which follow each other: its rank in each, and what holds for all of them."""
    return [{"rank": rank, "seed": 10 * number, **more} for number, rank in enumerate(ranks)]


def seeds(number: int, chief: int = 0) -> List[int]:
    """What the members of the group with this number take: the seeds of their first rank."""
    return [1000 * chief + 10 * number + model for model in range(3)]


def at(ports: List[int], plan: List[Stage]) -> List[Stage]:
    return [{**stage, "port": port} for stage, port in zip(plan, ports)]


def test_ranks_that_swap() -> None:
    """Only two of three wrap models, and they are not the same two in the second group."""
    ports = [free_port(), free_port()]
    common = {"size": 3, "members": [0, 1]}
    agreed = joined([at(ports, groups_of(ranks, **common)) for ranks in ([0, 1], [1, 2], [2, 0])])
    assert agreed == [[seeds(0), seeds(1)], [seeds(0), []], [[], seeds(1)]]


@pytest.mark.parametrize("replaced", [0, 1])
def test_a_new_process_beside_one_that_lived_before(replaced: int) -> None:
    ports = [free_port(), free_port()]
    plans = [at(ports, groups_of([rank, rank], size=2)) for rank in (0, 1)]
    plans[replaced][0]["replaced"] = True
    assert joined(plans) == [[seeds(0), seeds(1)]] * 2


@contextlib.contextmanager
def server() -> Iterator[int]:
    """A store of the user's own that outlives the groups; its port."""
    timeout = datetime.timedelta(seconds=LIMIT)
    port = free_port()
    kept = distributed.TCPStore("127.0.0.1", port, None, True, timeout, False)
    yield port
    del kept


@pytest.mark.skipif(not hasattr(distributed.Store, "list_keys"), reason="this torch cannot empty a store of its keys")
@pytest.mark.parametrize("replaced", [(), (0,)], ids=str)
def test_a_group_on_the_server_of_the_one_before(replaced: List[int]) -> None:
    """Nothing is read there that the former group left, although all keys have the same prefix."""
    with server() as port:
        plans = [at([port] * 3, groups_of([rank, 1 - rank, rank], size=2, server=True)) for rank in (0, 1)]
        for index in replaced:
            plans[index][0]["replaced"] = True
        assert joined(plans) == [[seeds(0), seeds(1), seeds(2)]] * 2


ONE = """
import sys
from datetime import timedelta
from torch import distributed
from ddpfix.exchange import rendezvous
from ddpfix.uneven import async_sum

where = "tcp://127.0.0.1:" + sys.argv[1]
for _ in range(2):
    distributed.init_process_group("gloo", init_method=where, rank=0, world_size=1)
    rendezvous.announce()
    async_sum.cpu_group(timedelta(seconds=9))
    assert async_sum.cpu_group(timedelta(seconds=9)) is not None
    distributed.destroy_process_group()
    import socket
    with socket.socket() as other:
        assert other.connect_ex(("127.0.0.1", int(sys.argv[1]))) != 0, "the store of the destroyed group is still there"
"""


def test_a_destroyed_group_frees_its_port() -> None:
    command = [sys.executable, "-c", ONE, str(free_port())]
    environ = ranks.environment({"DDPFIX": "1"})
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
