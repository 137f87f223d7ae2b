"""One training of the demo: two real ranks under torch elastic, what they recorded, and whether that is a pass."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ddpfix.cli import run

# In a folder of its own, because the folder of a script is the first place where its imports are looked for.
SCRIPT = Path(__file__).with_name("script") / "train.py"
UNFINISHED = "Expected to have finished reduction in the prior iteration"
RANKS = 2
STEP_SECONDS, TOTAL_SECONDS, GRACE_SECONDS = 30, 240, 10
# Below this many steps there is too little to judge a loss by.
JUDGED_STEPS = 20
# Settings of the user's own jobs (an accelerate config, an outer torchrun) are not for these ranks.
_OUTER_VARIABLES = ("ACCELERATE_", "PET_", "TORCHELASTIC_", "FSDP_")


class Step(NamedTuple):
    """One step as all ranks recorded it; None for a rank that did not reach it. The loss is the mean over the ranks."""

    number: int
    skipped: Tuple[Optional[Tuple[str, ...]], ...]
    loss: float

    @property
    def agreed(self) -> bool:
        return len(set(self.skipped)) == 1


class Job:
    """One training, unpatched or under ddpfix: its record, and what its ranks printed."""

    def __init__(self, patched: bool, steps: int, folder: Path) -> None:
        self.patched, self.wanted = patched, steps
        self.folder = folder / ("ddpfix" if patched else "unpatched")
        self.code: Optional[int] = None
        self.seconds = 0.0

    def train(self) -> None:
        """Run to the end: torchrun with a script that knows nothing of ddpfix, with ``-m ddpfix run`` in front."""
        self.folder.mkdir()
        front = ["-m", "ddpfix", "run"] if self.patched else []
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(RANKS)]
        # Each rank's output goes to a file of its own: the two would be mixed up in one.
        files = ["--monitor_interval", "0.2", "--redirects", "3", "--log_dir", str(self.folder / "logs")]
        words = ["--steps", str(self.wanted), "--folder", str(self.folder), "--limit", str(STEP_SECONDS)]
        began = time.monotonic()
        with (self.folder / "launcher.log").open("wb") as log:
            # A session of its own, so that Ctrl-C reaches the launcher through us alone, once, and in order.
            process = subprocess.Popen(
                [sys.executable, *front, *launcher, *files, str(SCRIPT), *words],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(TOTAL_SECONDS)
            finally:
                self._stop(process)
        self.code, self.seconds = process.returncode, time.monotonic() - began

    def _environment(self) -> Dict[str, str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(_OUTER_VARIABLES)}
        environ.update(DDPFIX="1" if self.patched else "0", OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
        # Torch and its launcher leave folders in the temporary directory; these go with ours.
        environ.update(TMPDIR=str(self.folder))
        environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", USE_TF="0", USE_FLAX="0", WANDB_DISABLED="true")
        if hasattr(socket, "if_nameindex") and "lo" in [name for _, name in socket.if_nameindex()]:
            # Otherwise gloo resolves the host's name, which fails on many laptops and in many containers.
            environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        if not run.start_files():
            root = str(Path(__file__).parents[3])
            environ["PYTHONPATH"] = os.pathsep.join(p for p in (environ.get("PYTHONPATH", ""), root) if p)
        return environ

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        """End the launcher, which ends its ranks; a process that does not end in time is killed."""
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(GRACE_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.kill()
            process.wait()
        if process.returncode < 0:
            # Ranks are in sessions of their own, so a launcher that was killed leaves them running.
            for line in self.lines("pid"):
                with contextlib.suppress(OSError):
                    os.kill(line["pid"], signal.SIGTERM if os.name == "nt" else signal.SIGKILL)

    def lines(self, key: str) -> List[Dict[str, Any]]:
        """Return the lines of all ranks' records that have this key."""
        lines = []
        for file in sorted(self.folder.glob("rank-*.jsonl")):
            whole, _, _ = file.read_text().rpartition("\n")
            lines += [json.loads(line) for line in whole.splitlines() if f'"{key}"' in line]
        return lines

    def output(self, rank: int) -> str:
        """Return a rank's output on stderr."""
        files = self.folder.glob(f"logs/**/{rank}/stderr.log")
        return "\n".join(file.read_text(errors="replace") for file in sorted(files))

    def everything(self) -> str:
        """Return the end of all that was captured, for the case in which something is not as expected."""
        parts = [("launcher", (self.folder / "launcher.log").read_text(errors="replace"))]
        parts += [(f"rank {rank}", self.output(rank)) for rank in range(RANKS)]
        return "\n".join("\n".join([f"----- {name}", *text.splitlines()[-40:]]) for name, text in parts if text.strip())

    def error(self, rank: int) -> str:
        """Return the last exception of a rank with its message, or an empty string."""
        prefix = f"[rank{rank}]:"
        # Recent torch begins each line of a rank's traceback with its number.
        lines = [
            line[len(prefix) :].replace(" ", "", 1) if line.startswith(prefix) else line
            for line in self.output(rank).splitlines()
        ]
        starts = [i for i, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
        if not starts:
            return ""
        # The traceback's own lines are indented; the message is what follows them, and may have several lines.
        rest = iter(lines[starts[-1] + 1 :])
        first = next((line for line in rest if line and not line.startswith(" ")), "")
        return "\n".join([first, *rest]).strip()

    def first_error(self) -> str:
        """Return one line on why the training failed."""
        errors = [f"rank {n}: {text.splitlines()[0]}" for n in range(RANKS) for text in [self.error(n)] if text]
        nothing = f"exit code {self.code} of the launcher after {self.seconds:.0f} s and no traceback"
        return errors[0] if errors else nothing

    def steps(self) -> List[Step]:
        """Return the ranks' records, step by step."""
        by_step: Dict[int, Dict[int, Dict[str, Any]]] = {}
        for line in self.lines("step"):
            by_step.setdefault(line["step"], {})[line["rank"]] = line
        found = []
        for number, ranks in sorted(by_step.items()):
            skipped = tuple(tuple(ranks[rank]["skipped"]) if rank in ranks else None for rank in range(RANKS))
            found.append(Step(number, skipped, sum(line["loss"] for line in ranks.values()) / len(ranks)))
        return found

    def losses(self) -> Tuple[float, float]:
        """Return the mean loss of the first and of the last steps, at most five."""
        losses = [step.loss for step in self.steps()]
        count = max(1, min(5, len(losses) // 2))
        return sum(losses[:count]) / count, sum(losses[-count:]) / count

    def complaints(self) -> List[str]:
        """Return the faults of a training under ddpfix; an empty list is a pass."""
        if self.code != 0:
            return [f"the training did not finish: {self.first_error()}"]
        wrong, done = [], self.steps()
        if [step.number for step in done if None not in step.skipped] != list(range(1, self.wanted + 1)):
            wrong.append(f"{len(done)} of {self.wanted} steps were recorded by every rank")
        apart = [step.number for step in done if not step.agreed]
        if apart:
            wrong.append(f"the ranks skipped different layers in {len(apart)} of {len(done)} steps (first: {apart[0]})")
        if not any(part for step in done for part in step.skipped):
            wrong.append("no layer was ever skipped, so nothing was shown")
        if [line["identical"] for line in self.lines("identical")] != [True] * RANKS:
            wrong.append("the ranks ended with different parameters")
        if len(done) >= JUDGED_STEPS and self.losses()[1] >= 0.7 * self.losses()[0]:
            wrong.append("the loss did not go down")
        return wrong
