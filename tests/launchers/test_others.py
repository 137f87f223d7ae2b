"""accelerate launch, Lightning's own launcher, what SLURM's srun sets, and mpirun: as in test_torchrun.py."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
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
RAY = {"RAY_AUTH_MODE": "disabled", "RAY_TRAIN_V2_ENABLED": os.environ.get("RAY_TRAIN_V2_ENABLED", "1")}
ABSENT = {**ON, "DDPFIX_TIMEOUT": "3", "TEST_STOCK": "1"}


def judge(job: Job, environ: Mapping[str, str], compared: bool = True) -> None:
    """The right end of a job of two ranks that was unpatched, or was not."""
    records = job.of(2)
    if environ is ON:
        assert job.code == 0, job.output
        check(records, compared)
    else:
        check_unpatched(records)


def names_the_host(job: Job, host: str) -> None:
    """The rank with ddpfix says on which host there is none."""
    (error,) = (one["error"] for one in job.of(2) if one["active"])
    assert "but not on rank 1" in error and f"Rank 1 is on host {host}." in error, error


ACCELERATE = (sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--mixed_precision", "no")
ON_CPU = {"ACCELERATE_USE_CPU": "true", "ACCELERATE_CONFIG_FILE": ""}


@BOTH
@pytest.mark.parametrize("how", ("plain", "accelerate_loop"))
def test_accelerate(tmp_path: Path, environ: Mapping[str, str], how: str) -> None:
    words = [*ACCELERATE, "--num_processes", "2", "--main_process_port", str(free_port())]
    words += ["--dynamo_backend", "no", str(PROGRAM), str(tmp_path), "torch", how]
    judge(launch.run(words, tmp_path, {**environ, **ON_CPU}), environ, compared=how == "plain")


@pytest.mark.parametrize("second", (ON, {"DDPFIX": "0"}), ids=("on", "absent"))
def test_accelerate_on_two_hosts(pair: Pair, tmp_path: Path, second: Mapping[str, str]) -> None:
    commands: List[Tuple[hosts.Host, Sequence[str], Mapping[str, str]]] = []
    for index, (host, environ) in enumerate(zip(pair, (ON if second is ON else ABSENT, second))):
        words = [*ACCELERATE, "--num_processes", "2", "--num_machines", "2", "--machine_rank", str(index)]
        words += ["--main_process_ip", pair[0].address, "--main_process_port", "29511", "--rdzv_backend", "static"]
        words += ["--dynamo_backend", "no", str(PROGRAM), str(tmp_path)]
        stock = {} if second is ON else {"TEST_STOCK": "1"}
        commands.append((host, words, {**environ, **ON_CPU, **stock}))
    job = launch.run_on_both(commands, tmp_path)
    if second is ON:
        judge(job, ON)
    else:
        names_the_host(job, "node-b")


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


@BOTH
@pytest.mark.parametrize("how", ("plain", "prepared"))
def test_ray_train(tmp_path: Path, environ: Mapping[str, str], how: str) -> None:
    """Ray ends all workers as soon as one has ended with an error."""
    needed("ray", f"pip install 'ray[train]', {THEN}")
    program = str(PROGRAM.with_name("by_ray.py"))
    job = launch.run([sys.executable, program, str(tmp_path), how], tmp_path, {**environ, **RAY}, limit=400)
    if environ is ON:
        judge(job, environ, compared=how == "plain")
    else:
        assert any(launch.REDUCTION in one.get("error", "") for one in job.records.get(0, [])), job.output[-4000:]
        assert not any(one["active"] for one in job.records[0])


def ray_on_both(pair: Pair, folder: Path, environs: Sequence[Mapping[str, str]]) -> Job:
    """A cluster of two hosts, with a worker on each."""
    needed("ray", f"pip install 'ray[train]', {THEN}")
    program = [sys.executable, str(PROGRAM.with_name("by_ray.py")), str(folder)]
    head, other = (host.address for host in pair)
    words = ([*program, "plain", head], [*program, "join", head, other])
    # Where its sockets have short paths, and no other program takes this cluster for its own.
    with tempfile.TemporaryDirectory(prefix="ray-") as place:
        own = {**RAY, "RAY_TMPDIR": place}
        commands = [(host, each, {**environ, **own}) for host, each, environ in zip(pair, words, environs)]
        return launch.run_on_both(commands, folder, limit=400)


@BOTH
def test_ray_on_two_hosts(pair: Pair, tmp_path: Path, environ: Mapping[str, str]) -> None:
    job = ray_on_both(pair, tmp_path, [environ, environ])
    if environ is ON:
        judge(job, environ)
        assert sorted(one["host"] for one in job.of(2)) == list(hosts.NAMES)
    else:
        assert any(launch.REDUCTION in one.get("error", "") for one in job.records.get(0, [])), job.output[-4000:]


def test_ray_with_a_host_without_ddpfix(pair: Pair, tmp_path: Path) -> None:
    """Which of the two has rank 0 is Ray's choice."""
    job = ray_on_both(pair, tmp_path, [ABSENT, UNPATCHED])
    (error,) = (one["error"] for one in job.records.get(0, []) if one["active"])
    assert "ddpfix" in error and "is on host node-b." in error, error


def slurm(pair: Pair, folder: Path, environs: Sequence[Mapping[str, str]], *rest: str) -> Job:
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
    for index, (host, environ) in enumerate(zip(pair, environs)):
        own = {"SLURM_PROCID": str(index), "SLURM_LOCALID": "0", "SLURM_NODEID": str(index)}
        words = [sys.executable, str(PROGRAM), str(folder), "slurm", *rest]
        commands.append((host, words, {**common, **own, **environ}))
    return launch.run_on_both(commands, folder)


@BOTH
def test_slurm(pair: Pair, tmp_path: Path, environ: Mapping[str, str]) -> None:
    judge(slurm(pair, tmp_path, [environ, environ]), environ)


def test_slurm_with_a_host_without_ddpfix(pair: Pair, tmp_path: Path) -> None:
    names_the_host(slurm(pair, tmp_path, [ABSENT, UNPATCHED]), "node-b")


def test_slurm_under_lightning(pair: Pair, tmp_path: Path) -> None:
    needed("lightning", f"pip install lightning, {THEN}")
    job = slurm(pair, tmp_path, [ON, ON], "lightning")
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
