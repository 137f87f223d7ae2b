"""Starts two real ranks under torch elastic and collects what each of them found."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

ROOT = Path(__file__).resolve().parent.parent.parent
WORKER = Path(__file__).with_name("worker.py")


@dataclass
class Outcome:
    """Exit code, all output, and by rank what the worker wrote for each scenario."""

    code: int
    output: str
    ranks: Dict[int, Dict[str, Any]]

    def found(self, scenario: str) -> List[Any]:
        """What the ranks wrote for one scenario, in the order of ranks; fails with the output if one wrote nothing."""
        assert len(self.ranks) > 0, self.output
        for rank, found in sorted(self.ranks.items()):
            assert scenario in found, f"rank {rank} wrote nothing for {scenario}\n{self.output}"
        return [found[scenario] for _, found in sorted(self.ranks.items())]


def environment(more: Optional[Mapping[str, str]] = None) -> Dict[str, str]:
    """A clean environment in which the children find this checkout, and ddpfix's way in if it is not installed."""
    from ddpfix.cli import run

    environ = {name: value for name, value in os.environ.items() if not name.startswith("DDPFIX")}
    folders = [str(ROOT)] if run.installed() else [str(ROOT / "ddpfix" / "_site"), str(ROOT)]
    environ["PYTHONPATH"] = os.pathsep.join(folders)
    environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    environ.update(more or {})
    return environ


def ranks(
    scenarios: Sequence[str],
    environ: Optional[Mapping[str, str]] = None,
    before: Sequence[str] = (),
    size: int = 2,
    timeout: float = 180,
) -> Outcome:
    """Run scenarios of the worker on ``size`` ranks, with ``before`` in front of the command line."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(before or [sys.executable]),
            *("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(size)),
            *(str(WORKER), folder, *scenarios),
        ]
        code, output = _run(command, environment(environ), folder, timeout)
        found = {int(file.stem): json.loads(file.read_text()) for file in Path(folder).glob("*.json")}
    return Outcome(code, output, found)


def _run(command: List[str], environ: Dict[str, str], folder: str, timeout: float) -> Tuple[int, str]:
    """Exit code and output; past the time limit every process of the launch is killed, and the code is 124."""
    with tempfile.TemporaryFile("w+") as screen:
        child = subprocess.Popen(
            command, env=environ, stdout=screen, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True
        )
        try:
            code = child.wait(timeout)
        except subprocess.TimeoutExpired:
            # torch elastic gives its workers sessions of their own, and ends them when it is asked to end.
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(40)
            code = 124
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        screen.seek(0)
        return code, screen.read()
