"""Runs fastNLP on real ranks, stock or under ddpfix, and collects what the ranks saw.

Most scenarios run in forked ranks, as torchrun starts them; :func:`alone` has fastNLP start its other ranks itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from tests.fastnlp.releases import RAISED
from tests.ranks import launch as ranks
from tests.support import waiting

RANK = Path(__file__).with_name("rank.py")
JOB = Path(__file__).with_name("job.py")
FAILURE = "Expected to have finished reduction in the prior iteration"


@dataclass
class Scenario:
    """One training run.

    Attributes:
        name: how its outcome is asked for.
        model: a key of :data:`tests.fastnlp.models.MODELS`.
        kwargs: keywords of ``Trainer`` or ``DistTrainer``.
        fail: which rank (every one if left out) fails, and where: train or evaluate; and how.
        settings: arguments of ``ddpfix.activate`` in the child.
        before: code that runs before the trainer is made; it finds ``model``, ``given`` and ``found``.
        after: code that runs when the training has ended.
        evaluate: whether the model is evaluated after each epoch.
        first: code that a script begins with.
        timeout: seconds after which a hanging run is ended.
    """

    name: str
    model: str = "spare"
    kwargs: Dict[str, Any] = field(default_factory=dict)
    fail: Optional[Dict[str, Any]] = None
    settings: Dict[str, str] = field(default_factory=dict)
    before: str = ""
    after: str = ""
    evaluate: bool = False
    first: str = ""
    timeout: float = 60


@dataclass
class Result:
    """What one rank saw; ``ended`` if it was killed, and so recorded nothing.

    Attributes:
        steps: a digest of all parameters after each optimizer step.
        ddp: what each DDP was given.
        ran: for each step, the layers that ran.
        places: the state of ddpfix's patches in that process.
        given_stays: whether the keywords that the user gave are what they were.
        random: a digest of the state of Python's global generator at the end.
    """

    log: str
    ended: bool = False
    error: Optional[str] = None
    steps: List[str] = field(default_factory=list)
    ddp: List[Dict[str, Any]] = field(default_factory=list)
    ran: List[List[str]] = field(default_factory=list)
    places: Dict[str, str] = field(default_factory=dict)
    given_stays: bool = True
    random: str = ""

    def failure(self) -> str:
        """The error; of a rank that was ended, what DDP raised before, or "" if it raised nothing."""
        raised = (line for line in self.log.splitlines() if line.startswith(RAISED))
        return self.error or next(raised, "")


def train(scenarios: Sequence[Scenario], folder: Path, ddpfix: bool, size: int = 2) -> Dict[str, List[Result]]:
    """Run scenarios one after the other on ``size`` ranks; returns the results by name, in the order of ranks."""
    waiting.train(RANK, [asdict(scenario) for scenario in scenarios], folder, size, {"DDPFIX": "1"} if ddpfix else {})
    return {scenario.name: _results(folder, scenario.name, size) for scenario in scenarios}


def _results(folder: Path, name: str, size: int) -> List[Result]:
    found = waiting.records(folder, name, size)
    return [Result(log, ended=True) if record is None else Result(log, **record) for log, record in found]


def alone(
    scenario: Scenario, folder: Path, words: Sequence[str] = (str(JOB),), environ: Optional[Dict[str, str]] = None
) -> Tuple[int, str, List[Result]]:
    """Start one process; fastNLP starts the others.

    Args:
        scenario: what is trained.
        folder: where the ranks leave their records.
        words: the command line in front of the options: a script or ``-m module``, perhaps behind ``-m ddpfix run``.
        environ: further environment variables.

    Returns:
        exit code (negative: the signal), everything that appeared on the screen, and each rank's record.
    """
    options = folder / f"{scenario.name}.options.json"
    options.write_text(json.dumps({**asdict(scenario), "folder": str(folder)}))
    whole = ranks.environment(environ)
    whole["PYTHONPATH"] = os.pathsep.join([whole["PYTHONPATH"], os.environ.get("PYTHONPATH", "")])
    code, screen = _run([sys.executable, *words, str(options)], whole, folder, scenario.timeout)
    results = []
    for rank in range(2):
        file = folder / f"{scenario.name}.{rank}.json"
        results.append(Result(screen, **json.loads(file.read_text())) if file.exists() else Result(screen, ended=True))
    return code, screen, results


def _run(command: List[str], environ: Dict[str, str], folder: Path, timeout: float) -> Tuple[int, str]:
    """Exit code and screen; every process of the launch has ended when it returns."""
    with tempfile.TemporaryFile("w+") as screen:
        child = subprocess.Popen(
            command, env=environ, stdout=screen, stderr=subprocess.STDOUT, cwd=str(folder), start_new_session=True
        )
        try:
            code = child.wait(timeout)
        except subprocess.TimeoutExpired:
            # torch elastic gives its workers sessions of their own, and ends them when it is asked to end.
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(40)
            code = 124
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        screen.seek(0)
        return code, screen.read()
