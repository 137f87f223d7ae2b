"""torchrun on two hosts (rendezvous c10d), what SLURM's srun sets, and mpirun: training, and a host that is lost."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import List, Mapping, Sequence, Tuple

import pytest

from ddpfix import __version__
from tests.launchers import launch
from tests.launchers.launch import ON, PROGRAM, UNPATCHED, Job, check, check_unpatched
from tests.support import hosts
from tests.support.ports import free_port

pytestmark = [
    pytest.mark.sampled(inside=False, cells=True),
    pytest.mark.patches("torch.agreement", "transformers.layerdrop"),
]
Pair = Tuple[hosts.Host, hosts.Host]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--monitor_interval", "0.2")
BOTH = pytest.mark.parametrize("environ", (UNPATCHED, ON), ids=("unpatched", "on"))


def judge(job: Job, environ: Mapping[str, str]) -> None:
    """The right end of a job of two ranks that was unpatched, or was not."""
    records = job.of(2)
    if environ is ON:
        assert job.code == 0, job.output
        check(records)
    else:
        check_unpatched(records)


@BOTH
def test_slurm(pair: Pair, tmp_path: Path, environ: Mapping[str, str]) -> None:
    """One process on each host, with the variables that srun sets for ``--nodes 2 --ntasks-per-node 1``."""
    common = {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOBID": "4711",
        "SLURM_JOB_NAME": "train",
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_NNODES": "2",
        "SLURM_JOB_NODELIST": "node-[a-b]",
        "SLURM_NODELIST": "node-[a-b]",
        "SLURM_STEP_NODELIST": "node-[a-b]",
        # As sbatch scripts set them, by scontrol show hostnames.
        "MASTER_ADDR": hosts.NAMES[0],
        "MASTER_PORT": "29533",
    }
    commands: List[Tuple[hosts.Host, Sequence[str], Mapping[str, str]]] = []
    for index, host in enumerate(pair):
        own = {"SLURM_PROCID": str(index), "SLURM_LOCALID": "0", "SLURM_NODEID": str(index)}
        words = [sys.executable, str(PROGRAM), str(tmp_path), "slurm"]
        commands.append((host, words, {**common, **own, **environ}))
    judge(launch.run_on_both(commands, tmp_path), environ)


def mpirun(kind: str) -> str:
    """The launcher of an MPI: in one of the folders that TEST_MPI names, or on PATH."""
    folders = os.pathsep.join([os.environ.get("TEST_MPI", ""), os.environ.get("PATH", os.defpath)])
    for folder in filter(None, folders.split(os.pathsep)):
        program = shutil.which("mpiexec", path=folder)
        beside = shutil.which("ompi_info" if kind == "openmpi" else "mpichversion", path=folder)
        if program is not None and beside is not None:
            return program
    pytest.skip(f"{kind} is not here: uv venv V; uv pip install --python V {kind}; TEST_MPI=V/bin pytest --rest ...")


@BOTH
@pytest.mark.parametrize(
    ("kind", "options"), [("openmpi", ["--allow-run-as-root", "--oversubscribe"]), ("mpich", [])], ids=str
)
def test_mpirun(tmp_path: Path, kind: str, options: List[str], environ: Mapping[str, str]) -> None:
    words = [mpirun(kind), *options, "-n", "2", sys.executable, str(PROGRAM), str(tmp_path), kind]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    judge(launch.run(words, tmp_path, {**environ, **place}), environ)


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
