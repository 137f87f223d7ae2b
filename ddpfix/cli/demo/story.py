"""``ddpfix demo``: two real ranks on the CPU train a tiny model, first unpatched, then under ddpfix.

Nothing is loaded from the network, no GPU is needed, and nothing is simulated: the error is torch's own, and hooks on
the layers record which ones ran.
"""

from __future__ import annotations

import importlib.util
import shutil
import signal
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, List, Optional, Sequence, Tuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ddpfix import __version__, _switch
from ddpfix.cli import run
from ddpfix.cli.demo.job import RANKS, SCRIPT, UNFINISHED, Job
from ddpfix.matrix import loader
from ddpfix.settings import reading

_WAYS = (
    ("import ddpfix.auto", "the first line of the training script"),
    ("python -m ddpfix run train.py ...", "no edit; also in front of torchrun and accelerate launch"),
    ("DDPFIX=1 bash finetune.sh", "every Python process of a script, unmodified"),
)
# Torch's message ends with what does not apply here.
_NOT_APPLICABLE = ("If you already have done", "In addition, you can set")


def show(steps: int) -> int:
    """Run both trainings and print what happened.

    Returns:
        0 if the unpatched training failed as expected and ddpfix passed, 1 if not, 2 if something is missing, 130
        after Ctrl-C.

    Raises:
        SettingsError: a ``DDPFIX_*`` variable has a name or a value that is not known.
    """
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if steps < 2 or missing:
        needs = f"{' and '.join(missing)}: pip install 'ddpfix[demo]'"
        _switch.say(
            f"the demo needs {needs if missing else 'two steps: without ddpfix, training fails in the second one'}"
        )
        return 2
    reading.read({}, loader.load().patches)
    folder = Path(tempfile.mkdtemp(prefix="ddpfix-demo-"))
    try:
        with _ending_in_order():
            return tell(steps, folder)
    except KeyboardInterrupt:
        sys.stderr.write("\nddpfix: interrupted; the ranks have been ended\n")
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """While ranks run, SIGTERM and SIGHUP unwind this process instead of ending it on the spot."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def tell(steps: int, folder: Path) -> int:
    """Run both trainings in ``folder`` and print what happened; the exit code."""
    began, screen = time.monotonic(), Screen()
    screen.say(f"ddpfix {__version__} demo: a tiny random WavLM with LayerDrop under DDP, on {RANKS} ranks")
    screen.say(f"the training script knows nothing of ddpfix: {SCRIPT}", "dim")
    unpatched, patched = (Job(under_ddpfix, steps, folder) for under_ddpfix in (False, True))
    passed = _unpatched(screen, unpatched)
    if not passed and not unpatched.steps():
        # Where not even a first step is possible, the second half would only repeat the same output.
        return 1
    passed = _patched(screen, patched) and passed
    screen.say("\nSwitch it on for your own training, by any one of", "bold")
    for line, meaning in _WAYS:
        screen.say(f"  {line:36}{meaning}")
    if not run.start_files():
        screen.say("  (the last one needs an installed ddpfix; this one runs from a checkout)", "dim")
    screen.say(f"\n{'Done' if passed else 'NOT as expected, see above'}, in {time.monotonic() - began:.0f} s.")
    return 0 if passed else 1


def _unpatched(screen: Screen, job: Job) -> bool:
    screen.trained(job, "1. Unpatched: torchrun --nproc_per_node 2 train.py", "up to the failure")
    errors = {rank: job.error(rank) for rank in range(RANKS)}
    failed = next((rank for rank, text in errors.items() if job.code and UNFINISHED in text), None)
    if failed is None:
        ended = "the training ended without an error" if job.code == 0 else f"it ended with {job.first_error()}"
        return screen.unexpected(job, [f"it should have failed with {UNFINISHED!r}, but {ended}"])
    # A forward that ends is recorded; this error is raised before the next one begins.
    screen.say(f"Failed in step {len(job.steps()) + 1}, rank {failed}:", "bold red")
    for line in map(str.strip, errors.pop(failed).splitlines()):
        if line and not line.startswith(_NOT_APPLICABLE):
            screen.say(_sentences(line, 400), "red")
    for rank, text in errors.items():
        if text:
            screen.say(f"rank {rank}: {_sentences(text.splitlines()[0], 200)}", "dim")
    return True


def _patched(screen: Screen, job: Job) -> bool:
    title = "2. The same under ddpfix: python -m ddpfix run torchrun --nproc_per_node 2 train.py"
    screen.trained(job, title, "under ddpfix")
    complaints = job.complaints()
    if complaints:
        return screen.unexpected(job, complaints)
    done = job.steps()
    first, last = job.losses()
    screen.say(f"loss: {done[0].loss:.3f} in step 1, {done[-1].loss:.3f} in step {len(done)}", "green")
    screen.say(f"      {first:.3f} on average in the first steps, {last:.3f} in the last ones", "green")
    screen.say(f"layers: all ranks skipped the same ones in all {len(done)} steps", "green")
    screen.say("parameters: identical on all ranks at the end, to the last bit", "green")
    return True


class Screen:
    """A terminal, or a pipe, in which nothing moves and lines are not squeezed."""

    def __init__(self) -> None:
        self._moving = sys.stdout.isatty()
        self._console = Console(width=None if self._moving else 120, highlight=False)

    def say(self, text: str, style: str = "") -> None:
        # Text from ranks may hold square brackets, which rich would read as styles; long lines stay searchable.
        self._console.print(Text(text, style=style), soft_wrap=not self._moving)

    def trained(self, job: Job, title: str, when: str) -> None:
        """Run a training, and show ddpfix's lines and the layers by step and rank, as far as it came."""
        self.say(f"\n{title}", "bold")
        with self._console.status("two ranks train"):
            job.train()
        for line in job.output(0).splitlines() if job.patched else ():
            if line.startswith(("ddpfix: ", f"ddpfix {__version__}: ")):
                self.say(line, "dim")
        about, steps = job.lines("versions"), job.steps()
        if not (about and steps):
            return
        versions = ", ".join(f"{name} {version}" for name, version in about[0]["versions"].items())
        title = f"Layers by rank, {when} ({versions}, {job.seconds:.0f} s)"
        self.say(f"{title}: a number is a layer that was skipped, a dot one that ran")
        table = Table("step", *(f"rank {rank} skipped" for rank in range(RANKS)), "", "loss")
        for step in steps:
            cells = [Text(strip(about[0]["layers"], part), "" if step.agreed else "red") for part in step.skipped]
            mark = Text("same", style="green") if step.agreed else Text("DIFFERENT", style="bold red")
            table.add_row(f"{step.number:4}", *cells, mark, f"{step.loss:.3f}")
        self._console.print(table)

    def unexpected(self, job: Job, what: List[str]) -> bool:
        name = "ddpfix" if job.patched else "unpatched"
        self.say(f"The last lines of what the {name} ranks printed:")
        self.say(job.everything(), "dim")
        for line in what:
            self.say(f"NOT as expected ({name}): {line}", "bold red")
        self.say("`python -m ddpfix plan` says what ddpfix does in this environment, and why.")
        return False


def _sentences(line: str, most: int) -> str:
    """Return the whole sentences at the beginning of a line that is too long: torch lists up to a hundred indices."""
    head = line[:most]
    return line if len(line) <= most else head[: head.rfind(". ") + 1] or f"{head.rpartition(' ')[0]} ..."


def strip(layers: Sequence[str], skipped: Optional[Tuple[str, ...]]) -> str:
    """Return the layers side by side: the number of one that was skipped, a dot for one that ran."""
    if skipped is None:
        return "(not reached)"
    return " ".join(layer if layer in skipped else "." for layer in layers)
