"""torchrun on two hosts, its rendezvous c10d: training, and a host that is lost."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Mapping, Sequence, Tuple

import pytest

from ddpfix import __version__
from tests.launchers import launch
from tests.launchers.launch import ON, PROGRAM, Job, check
from tests.support import hosts

pytestmark = [
    pytest.mark.sampled(inside=False, cells=True),
    pytest.mark.patches("torch.agreement", "transformers.layerdrop"),
]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--monitor_interval", "0.2")
Pair = Tuple[hosts.Host, hosts.Host]


def on_both(pair: Pair, folder: Path, environ: Mapping[str, str], more: Sequence[str] = ()) -> Job:
    """torchrun on each host, with two ranks; they meet at the first one."""
    words = [*TORCHRUN, "--nproc_per_node", "2", "--rdzv_backend", "c10d", "--rdzv_id", folder.name]
    words += ["--rdzv_endpoint", f"{pair[0].address}:29400", *(more or ["--nnodes", "2"]), str(PROGRAM), str(folder)]
    return launch.run_on_both([(host, words, environ) for host in pair], folder)


def test_two_hosts(pair: Pair, tmp_path: Path) -> None:
    job = on_both(pair, tmp_path, ON)
    records = job.of(4)
    assert job.code == 0, job.output
    assert sorted(one["host"] for one in records) == sorted(list(hosts.NAMES) * 2)
    check(records)
    # One line, of the one process group: rank 0's.
    assert len(re.findall(re.escape(f"ddpfix {__version__}: "), job.output)) == 1, job.output


def test_a_host_that_is_lost_leaves_the_other_to_train(pair: Pair, tmp_path: Path) -> None:
    """Elastic: one or two hosts; the second one ends in mid-run, and the first one begins again with its own ranks."""
    settings = "join_timeout=60,last_call_timeout=4,keep_alive_interval=1,keep_alive_max_attempt=3"
    more = ["--nnodes", "1:2", "--max-restarts", "2", "--rdzv_conf", settings]
    job = on_both(pair, tmp_path, {**ON, "TEST_DIE": "node-b"}, more)
    last = max(job.records)
    assert last > 0
    records = job.of(2, attempt=last)
    assert {one["host"] for one in records} == {"node-a"}
    check(records)
