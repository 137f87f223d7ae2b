"""torchrun on two hosts, its rendezvous c10d: all ranks train alike, also where one host is lost in mid-run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

import pytest

from ddpfix import __version__
from tests.ranks.launch import WORKER
from tests.ranks.test_ranks import check_skips
from tests.support import hosts, ranks

pytestmark = [
    pytest.mark.sampled(inside=False, cells=True),
    pytest.mark.patches("torch.agreement", "transformers.layerdrop"),
]
Pair = Tuple[hosts.Host, hosts.Host]


class Job(NamedTuple):
    """How a job ended: the exit codes of both agents, all that was printed, and what each rank left."""

    codes: List[int]
    output: str
    ranks: Dict[int, Dict[str, Any]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two hosts, where namespaces are permitted."""
    if hosts.why_not() is not None:
        pytest.skip(f"{hosts.why_not()}; where it can be: python -m pytest --rest tests/launchers")
    with hosts.two_hosts(tmp_path_factory.mktemp("hosts")) as both:
        yield both


def job(pair: Pair, folder: Path, *more: str, **environ: str) -> Job:
    """torchrun on each host, with two ranks; they meet at the first one. None is left when this returns."""
    words = [sys.executable, "-m", "torch.distributed.run", "--monitor_interval", "0.2", "--nproc_per_node", "2"]
    words += ["--rdzv_backend", "c10d", "--rdzv_id", folder.name, "--rdzv_endpoint", f"{pair[0].address}:29400"]
    words += [*(more or ["--nnodes", "2"]), str(WORKER), str(folder), "plain_bart"]
    given, children = ranks.environment({"DDPFIX": "1", **environ}), []
    try:
        for host in pair:
            with (folder / f"{host.name}.log").open("w") as screen:
                command, streams = host.command(words, folder), {"stdout": screen, "stderr": subprocess.STDOUT}
                children.append(subprocess.Popen(command, env=given, start_new_session=True, **streams))  # type: ignore
        codes = [child.wait(240) for child in children]
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    output = "".join(file.read_text(errors="replace") for file in sorted(folder.glob("*.log")))
    return Job(codes, output, {int(file.stem): json.loads(file.read_text()) for file in folder.glob("?.json")})


def test_two_hosts(pair: Pair, tmp_path: Path) -> None:
    found = job(pair, tmp_path)
    assert found.codes == [0, 0], found.output
    assert sorted(each["host"] for each in found.ranks.values()) == sorted(list(hosts.NAMES) * 2)
    check_skips([found.ranks[rank]["plain_bart"] for rank in range(4)])
    # One line, of the one process group: rank 0's.
    assert found.output.count(f"ddpfix {__version__}: ") == 1, found.output


def test_a_host_that_is_lost_leaves_the_other_to_train(pair: Pair, tmp_path: Path) -> None:
    """Elastic: one or two hosts; the second one ends in mid-run, and the first one begins again with its own ranks."""
    settings = "join_timeout=60,last_call_timeout=4,keep_alive_interval=1,keep_alive_max_attempt=3"
    more = ["--nnodes", "1:2", "--max-restarts", "2", "--rdzv_conf", settings]
    found = job(pair, tmp_path, *more, TEST_DIE="node-b")
    assert {each["host"] for each in found.ranks.values()} == {"node-a"}, found.output
    check_skips([found.ranks[rank]["plain_bart"] for rank in (0, 1)])
