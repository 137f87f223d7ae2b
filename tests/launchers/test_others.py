"""accelerate launch, Lightning's own launcher, what SLURM's srun sets, and mpirun: as in test_torchrun.py."""

from __future__ import annotations

import os
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Dict, List, Mapping, Sequence, Tuple

import pytest
from packaging.version import Version

from tests.launchers import launch
from tests.launchers.launch import ON, PROGRAM, UNPATCHED, Job, check, check_unpatched
from tests.support import hosts
from tests.support.installed import needed
from tests.support.ports import free_port

pytestmark = [
    pytest.mark.sampled(inside=False, cells=True),
    pytest.mark.patches("torch.agreement", "transformers.layerdrop"),
]
Pair = Tuple[hosts.Host, hosts.Host]
BOTH = pytest.mark.parametrize("environ", (UNPATCHED, ON), ids=("unpatched", "on"))
THEN = "then python -m pytest --rest tests/launchers"


def judge(job: Job, environ: Mapping[str, str], compared: bool = True) -> None:
    """The right end of a job of two ranks that was unpatched, or was not."""
    records = job.of(2)
    if environ is ON:
        assert job.code == 0, job.output
        check(records, compared)
    else:
        check_unpatched(records)


ACCELERATE = (sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--mixed_precision", "no")
ON_CPU = {"ACCELERATE_USE_CPU": "true", "ACCELERATE_CONFIG_FILE": ""}


@BOTH
@pytest.mark.parametrize("how", ("plain", "accelerate_loop"))
def test_accelerate(tmp_path: Path, environ: Mapping[str, str], how: str) -> None:
    words = [*ACCELERATE, "--num_processes", "2", "--main_process_port", str(free_port())]
    words += ["--dynamo_backend", "no", str(PROGRAM), str(tmp_path), "torch", how]
    judge(launch.run(words, tmp_path, {**environ, **ON_CPU}), environ, compared=how == "plain")


@BOTH
def test_lightning_starts_its_ranks(tmp_path: Path, environ: Mapping[str, str]) -> None:
    needed("lightning", f"pip install lightning, {THEN}")
    words = [sys.executable, str(PROGRAM), str(tmp_path), "lightning", "lightning"]
    job = launch.run(words, tmp_path, environ)
    if environ is ON:
        judge(job, environ)
    else:
        # Lightning from 2.1 on words torch's error anew, and ends both ranks as soon as one has ended.
        errors = [one.get("error", "") for one in job.of(len(job.records.get(0, [])))]
        old = Version(metadata.version("lightning")).release < (2, 1)
        told = launch.REDUCTION if old else "were not used in producing the loss"
        assert any(told in error for error in errors), job.output


def slurm(pair: Pair, folder: Path, environ: Mapping[str, str], *rest: str) -> Job:
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
        words = [sys.executable, str(PROGRAM), str(folder), "slurm", *rest]
        commands.append((host, words, {**common, **own, **environ}))
    return launch.run_on_both(commands, folder)


@BOTH
def test_slurm(pair: Pair, tmp_path: Path, environ: Mapping[str, str]) -> None:
    judge(slurm(pair, tmp_path, environ), environ)


def test_slurm_under_lightning(pair: Pair, tmp_path: Path) -> None:
    needed("lightning", f"pip install lightning, {THEN}")
    job = slurm(pair, tmp_path, ON, "lightning")
    judge(job, ON)
    assert [one["host"] for one in job.of(2)] == list(hosts.NAMES)


def mpirun(kind: str) -> str:
    """The launcher of an MPI: in one of the folders that TEST_MPI names, or on PATH."""
    folders = os.pathsep.join([os.environ.get("TEST_MPI", ""), os.environ.get("PATH", os.defpath)])
    for folder in filter(None, folders.split(os.pathsep)):
        program = shutil.which("mpiexec", path=folder)
        beside = shutil.which("ompi_info" if kind == "openmpi" else "mpichversion", path=folder)
        if program is not None and beside is not None:
            return program
    pytest.skip(f"{kind} is not here: uv venv V; uv pip install --python V {kind}; TEST_MPI=V/bin pytest --rest ...")


def words_of(kind: str, folder: Path) -> List[str]:
    """mpirun with one process a rank."""
    options: Dict[str, List[str]] = {"openmpi": ["--allow-run-as-root", "--oversubscribe"], "mpich": []}
    return [mpirun(kind), *options[kind], "-n", "2", sys.executable, str(PROGRAM), str(folder), kind]


@BOTH
@pytest.mark.parametrize("kind", ("openmpi", "mpich"))
def test_mpirun(tmp_path: Path, kind: str, environ: Mapping[str, str]) -> None:
    judge(launch.run(words_of(kind, tmp_path), tmp_path, {**environ, **_meeting()}), environ)


def _meeting() -> Dict[str, str]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
