"""A rank under some launcher: says where it is and what is patched, and trains Bart with LayerDrop under DDP.

What is compared with (gradients without DDP and without ddpfix) is that of ``tests/ranks/worker.py``.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any, Dict

# For rank, world size, rank on the host: as users and toolkits map what a launcher sets to what torch reads.
VARIABLES = {
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    "openmpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "mpich": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
}
STEPS = 6


def main(folder: Path, kind: str = "torch") -> None:
    """Train, and leave ``RANK.ATTEMPT.json``.

    Args:
        folder: where it is left.
        kind: whose variables there are, a key of :data:`VARIABLES`; else those of torch.
    """
    for ours, theirs in zip(("RANK", "WORLD_SIZE", "LOCAL_RANK"), VARIABLES.get(kind, ())):
        os.environ[ours] = os.environ[theirs]
    from torch import distributed

    distributed.init_process_group("gloo")
    try:
        record = trained()
    except RuntimeError as error:
        record = {"error": str(error)}
    leave(folder, record)
    sys.stdout.flush()
    # A reduction that DDP has not finished keeps the process; and see tests/activation/ranks.py.
    os._exit(1 if "error" in record else 0)


def trained() -> Dict[str, Any]:
    """A plain loop under DDP, as :func:`tests.ranks.worker.train` has it."""
    from tests.ranks import worker
    from tests.support import zoo

    if "ddpfix" in sys.modules:
        worker.note_answers()
    return worker.train(zoo.tiny_model("bart"), STEPS, between=die, bucket_cap_mb=1)


def die(step: int, *model: Any) -> None:
    """End this process and the agent of its host in the first attempt, where ``TEST_DIE`` has the host's name."""
    if step == 3 and attempt() == 0 and os.environ.get("TEST_DIE") == socket.gethostname():
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def attempt() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def leave(folder: Path, record: Dict[str, Any]) -> None:
    """Write down what a rank found, with where it is and what is patched there."""
    from torch import distributed

    ddpfix = sys.modules.get("ddpfix")
    report = ddpfix.report() if ddpfix is not None else None
    record.update(
        rank=distributed.get_rank(),
        world=distributed.get_world_size(),
        host=socket.gethostname(),
        active=report is not None and report.active,
        patches={} if report is None else {patch.id: str(patch.state) for patch in report.patches},
    )
    (folder / f"{record['rank']}.{attempt()}.json").write_text(json.dumps(record), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
