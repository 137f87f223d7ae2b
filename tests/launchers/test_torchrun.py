"""torchrun on one host and on two, its rendezvous c10d: agreement, training, restarts, and which host differs."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Dict, List, Mapping, Sequence, Tuple

import pytest

from ddpfix import __version__
from tests.launchers import launch
from tests.launchers.launch import ON, PROGRAM, UNPATCHED, Job, check, check_unpatched
from tests.support import hosts, ranks

pytestmark = [
    pytest.mark.sampled(inside=False, cells=True),
    pytest.mark.patches("torch.agreement", "transformers.layerdrop"),
]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--monitor_interval", "0.2")
Pair = Tuple[hosts.Host, hosts.Host]


def on_both(
    pair: Pair, folder: Path, environs: Sequence[Mapping[str, str]], more: Sequence[str] = (), each: int = 1
) -> Job:
    """torchrun on each host, with variables of its own; they meet at the first one."""
    words = [*TORCHRUN, "--nproc_per_node", str(each), "--rdzv_backend", "c10d", "--rdzv_id", folder.name]
    words += ["--rdzv_endpoint", f"{pair[0].address}:29400", *(more or ["--nnodes", "2"]), str(PROGRAM), str(folder)]
    return launch.run_on_both([(host, words, environ) for host, environ in zip(pair, environs)], folder)


def test_unpatched_two_hosts_end_with_the_error_of_ddp(pair: Pair, tmp_path: Path) -> None:
    job = on_both(pair, tmp_path, [UNPATCHED, UNPATCHED])
    check_unpatched(job.of(2))


@pytest.mark.parametrize("each", (1, 2))
def test_two_hosts(pair: Pair, tmp_path: Path, each: int) -> None:
    job = on_both(pair, tmp_path, [ON, ON], each=each)
    records = job.of(2 * each)
    assert job.code == 0, job.output
    assert sorted(one["host"] for one in records) == sorted(list(hosts.NAMES) * each)
    check(records)
    # One line, of the one process group: rank 0's.
    assert len(re.findall(re.escape(f"ddpfix {__version__}: "), job.output)) == 1, job.output


@pytest.mark.parametrize("absent", (0, 1))
def test_the_host_without_ddpfix_is_named(pair: Pair, tmp_path: Path, absent: int) -> None:
    environs = [{**ON, "DDPFIX_TIMEOUT": "3", "TEST_STOCK": "1"}] * 2
    environs[absent] = {**UNPATCHED}
    job = on_both(pair, tmp_path, environs)
    assert job.code != 0
    (error,) = (one["error"] for one in job.records[0] if one["active"])
    (rank,) = re.findall(r"but not on rank (\d)", error)
    assert f"Rank {rank} is on host {hosts.NAMES[absent]}." in error


def other_version(folder: Path) -> Dict[str, str]:
    """The variables of a host on which ddpfix is another version: a copy, with that number."""
    for name in ("ddpfix", "patches"):
        shutil.copytree(ranks.ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ranks.ROOT / "compat_matrix.yaml", folder)
    init = folder / "ddpfix" / "__init__.py"
    text = init.read_text(encoding="utf-8")
    assert f'__version__ = "{__version__}"' in text
    init.write_text(text.replace(f'__version__ = "{__version__}"', '__version__ = "0.0.9"'), encoding="utf-8")
    path = ranks.environment()["PYTHONPATH"]
    return {**ON, "PYTHONPATH": f"{folder}:{folder / 'ddpfix' / '_site'}:{path}"}


def test_the_host_with_another_version_is_named(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    job = on_both(pair, tmp_path, [ON, other_version(tmp_path / "other")])
    assert job.code != 0
    for one in job.of(2):
        versions = re.findall(r"On rank 1 ddpfix is '([\w.]+)', on rank 0 it is '([\w.]+)'", one["error"])
        host_of = {record["rank"]: record["host"] for record in job.of(2)}
        version_of = {"node-a": __version__, "node-b": "0.0.9"}
        assert versions == [(version_of[host_of[1]], version_of[host_of[0]])]
        assert f"Rank 1 is on host {host_of[1]}. Rank 0 is on host {host_of[0]}." in one["error"]


def test_another_setting_on_one_host_is_named(pair: Pair, tmp_path: Path) -> None:
    job = on_both(pair, tmp_path, [ON, {**ON, "DDPFIX_LAYERDROP": "off"}], each=2)
    for one in job.of(4):
        assert "DDPFIX_LAYERDROP is" in one["error"] and "on host node-b." in one["error"]


def test_a_killed_worker_on_the_second_host(pair: Pair, tmp_path: Path) -> None:
    more: List[str] = ["--nnodes", "2", "--max-restarts", "1"]
    job = on_both(pair, tmp_path, [{**ON, "TEST_DIE": "1"}] * 2, more)
    assert job.code == 0, job.output
    check(job.of(2, attempt=1))


def test_a_host_that_is_lost_leaves_the_other_to_train(pair: Pair, tmp_path: Path) -> None:
    """Elastic: one or two hosts; the second one ends in mid-run, and the first one begins again with its own ranks."""
    settings = "join_timeout=60,last_call_timeout=4,keep_alive_interval=1,keep_alive_max_attempt=3"
    more = ["--nnodes", "1:2", "--max-restarts", "2", "--rdzv_conf", settings]
    job = on_both(pair, tmp_path, [{**ON, "TEST_DIE": "node-b"}] * 2, more, each=2)
    last = max(job.records)
    assert last > 0
    records = job.of(2, attempt=last)
    assert {one["host"] for one in records} == {"node-a"}
    check(records)
