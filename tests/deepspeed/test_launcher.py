"""The deepspeed launcher: on one host, and on two where each starts its own ranks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import List, Mapping, Sequence, Tuple

import pytest

from tests.deepspeed.launch import ENVIRON
from tests.launchers import launch
from tests.launchers.conftest import pair
from tests.launchers.launch import ON, PROGRAM, UNPATCHED
from tests.launchers.test_others import ABSENT, BOTH, judge, names_the_host
from tests.support import hosts
from tests.support.ports import free_port

pytestmark = [pytest.mark.sampled(inside=False, cells=True), pytest.mark.patches("deepspeed.layerdrop")]
LAUNCHER = (sys.executable, "-m", "deepspeed.launcher.runner", "--no_local_rank")
Pair = Tuple[hosts.Host, hosts.Host]
__all__ = ["pair"]


def on_one(folder: Path, environ: Mapping[str, str], how: str) -> launch.Job:
    words = [*LAUNCHER, "--num_gpus", "2", "--master_port", str(free_port()), str(PROGRAM), str(folder), "torch", how]
    return launch.run(words, folder, {**environ, **ENVIRON})


@BOTH
def test_ddp(tmp_path: Path, environ: Mapping[str, str]) -> None:
    judge(on_one(tmp_path, environ, "plain"), environ)


def test_an_engine(tmp_path: Path) -> None:
    judge(on_one(tmp_path, ON, "engine"), ON)


def test_an_engine_unpatched(tmp_path: Path) -> None:
    job = on_one(tmp_path, UNPATCHED, "engine")
    assert job.code != 0 and "Received data size doesn't match expected size" in job.output, job.output[-4000:]


def on_two(pair: Pair, folder: Path, environs: Sequence[Mapping[str, str]], how: str) -> launch.Job:
    """As ``--no_ssh`` has it: the same command on each host, with the number of the host."""
    file = folder / "hostfile"
    file.write_text("".join(f"{host.address} slots=1\n" for host in pair))
    commands: List[Tuple[hosts.Host, Sequence[str], Mapping[str, str]]] = []
    for index, (host, environ) in enumerate(zip(pair, environs)):
        words = [*LAUNCHER, "--hostfile", str(file), "--no_ssh", "--node_rank", str(index)]
        words += ["--master_addr", pair[0].address, "--master_port", "29541", str(PROGRAM), str(folder), "torch", how]
        commands.append((host, words, {**environ, **ENVIRON}))
    return launch.run_on_both(commands, folder)


@pytest.mark.parametrize("how", ["plain", "engine"])
def test_two_hosts(pair: Pair, tmp_path: Path, how: str) -> None:
    job = on_two(pair, tmp_path, [ON, ON], how)
    judge(job, ON)
    assert [one["host"] for one in job.of(2)] == list(hosts.NAMES)


def test_a_host_without_ddpfix(pair: Pair, tmp_path: Path) -> None:
    names_the_host(on_two(pair, tmp_path, [ABSENT, UNPATCHED], "plain"), "node-b")


def test_a_host_without_ddpfix_and_an_engine(pair: Pair, tmp_path: Path) -> None:
    """Ranks agree when the engine is made."""
    names_the_host(on_two(pair, tmp_path, [ABSENT, UNPATCHED], "engine"), "node-b")
