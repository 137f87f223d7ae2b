"""``ddpfix demo``: two real ranks on the CPU train a tiny model, first unpatched, then under ddpfix.

Nothing is loaded from the network, no GPU is needed, and nothing is simulated: the error is torch's own, and hooks on
the layers record which ones ran.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Iterator, List, Optional, Sequence, Tuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ddpfix import __version__, _env
from ddpfix.cli import run
from ddpfix.cli.demo import verdict
from ddpfix.cli.demo.ranks import RANKS, SCRIPT, Job, ending_in_order
from ddpfix.cli.demo.verdict import Step
from ddpfix.matrix import loader, settings

_WAYS = (
    ("import ddpfix.auto", "the first line of the training script"),
    ("python -m ddpfix run train.py ...", "no edit; also in front of torchrun and accelerate launch"),
    ("DDPFIX=1 bash finetune.sh", "every Python process of a script, unmodified"),
)


class Screen:
    """A terminal, or a pipe, in which nothing moves and lines are not squeezed."""

    def __init__(self) -> None:
        self.moving = sys.stdout.isatty()
        self.console = Console(width=None if self.moving else 120, highlight=False)

    def say(self, text: str, style: str = "") -> None:
        # Text from ranks may hold square brackets, which rich would read as styles; long lines stay searchable.
        self.console.print(Text(text, style=style), soft_wrap=not self.moving)

    def heading(self, title: str) -> None:
        self.say("")
        self.say(title, "bold")

    @contextmanager
    def progress(self, name: str, steps: int) -> Iterator[Callable[[int], None]]:
        """Say in a terminal which step runs; nothing in a pipe."""
        with self.console.status(f"{name}: two ranks are starting") as status:
            yield lambda step: status.update(f"{name}: step {step} of {steps}") if step else None

    def skipped(self, layers: Sequence[str], steps: List[Step]) -> None:
        """One row a step, one column a rank: skipped layers by number, the others as dots."""
        table = Table()
        table.add_column("step", justify="right")
        ranks = range(len(steps[0].skipped)) if steps else range(0)
        for rank in ranks:
            table.add_column(f"rank {rank} skipped", no_wrap=True)
        table.add_column("")
        table.add_column("loss", justify="right")
        for step in steps:
            cells = [Text(strip(layers, part), style="" if step.agreed else "red") for part in step.skipped]
            mark = Text("same", style="green") if step.agreed else Text("DIFFERENT", style="bold red")
            table.add_row(str(step.number), *cells, mark, f"{step.loss:.3f}")
        self.console.print(table)


def show(steps: int) -> int:
    """Run both trainings and print what happened.

    Returns:
        0 if the unpatched training failed as expected and ddpfix passed, 1 if not, 2 if something is missing, 130
        after Ctrl-C.

    Raises:
        SettingsError: a ``DDPFIX_*`` variable has a name or a value that is not known.
    """
    problem = _problem(steps)
    if problem is not None:
        _env.say(problem)
        return 2
    settings.read({}, loader.load().patches)
    folder = Path(tempfile.mkdtemp(prefix="ddpfix-demo-"))
    try:
        with ending_in_order():
            return tell(steps, folder)
    except KeyboardInterrupt:
        sys.stderr.write("\nddpfix: interrupted; the ranks have been ended\n")
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _problem(steps: int) -> Optional[str]:
    """Return why the demo cannot run here, in one line, or None."""
    if steps < 2:
        return "the demo needs at least two steps: without ddpfix, training fails in the second one"
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    return f"the demo needs {' and '.join(missing)}: pip install 'ddpfix[demo]'" if missing else None


def tell(steps: int, folder: Path) -> int:
    """Run both trainings in ``folder`` and print what happened; the exit code."""
    began = time.monotonic()
    screen = Screen()
    screen.say(f"ddpfix {__version__} demo: a tiny random WavLM with LayerDrop under DDP, on {RANKS} ranks")
    screen.say(f"the training script knows nothing of ddpfix: {SCRIPT}", "dim")
    unpatched, patched = (Job(under_ddpfix, steps, folder) for under_ddpfix in (False, True))
    passed = _unpatched(screen, unpatched)
    if not passed and not verdict.steps(unpatched):
        # Where not even a first step is possible, the second half would only repeat the same output.
        return 1
    passed = _patched(screen, patched) and passed
    screen.heading("Switch it on for your own training, by any one of")
    for line, meaning in _WAYS:
        screen.say(f"  {line:36}{meaning}")
    if not run.installed():
        screen.say("  (the last one needs an installed ddpfix; this one runs from a checkout)", "dim")
    screen.say(f"\n{'Done' if passed else 'NOT as expected, see above'}, in {time.monotonic() - began:.0f} s.")
    return 0 if passed else 1


def _unpatched(screen: Screen, job: Job) -> bool:
    screen.heading("1. Unpatched: torchrun --nproc_per_node 2 train.py")
    with screen.progress("unpatched", job.steps) as show_step:
        job.train(show_step)
    _seen(screen, job, "up to the failure")
    failure = verdict.failure(job)
    if failure is None:
        ended = "the training ended without an error" if job.code == 0 else f"it ended with {verdict.first_error(job)}"
        return _unexpected(screen, job, [f"it should have failed with {verdict.UNFINISHED!r}, but {ended}"])
    screen.say(f"Failed in step {failure.step}, rank {failure.rank}:", "bold red")
    screen.say(_shortened(failure.text), "red")
    for rank, text in failure.others.items():
        screen.say(f"rank {rank}: {_sentences(text.splitlines()[0], 200)}", "dim")
    return True


def _patched(screen: Screen, job: Job) -> bool:
    screen.heading("2. The same under ddpfix: python -m ddpfix run torchrun --nproc_per_node 2 train.py")
    with screen.progress("ddpfix", job.steps) as show_step:
        job.train(show_step)
    for line in job.output(0).splitlines():
        if line.startswith(("ddpfix: ", f"ddpfix {__version__}: ")):
            screen.say(line, "dim")
    _seen(screen, job, "under ddpfix")
    complaints = verdict.complaints(job)
    if complaints:
        return _unexpected(screen, job, complaints)
    done = verdict.steps(job)
    first, last = verdict.ends(done)
    screen.say(f"loss: {done[0].loss:.3f} in step 1, {done[-1].loss:.3f} in step {len(done)}", "green")
    if len(done) >= verdict.JUDGED_STEPS:
        screen.say(f"      {first:.3f} on average in the first five steps, {last:.3f} in the last five", "green")
    screen.say(f"layers: all ranks skipped the same ones in all {len(done)} steps", "green")
    screen.say("parameters: identical on all ranks at the end, to the last bit", "green")
    return True


def _seen(screen: Screen, job: Job, when: str) -> None:
    """The table of a training, as far as it came."""
    about = job.lines("versions")
    if about and verdict.steps(job):
        versions = ", ".join(f"{name} {version}" for name, version in about[0]["versions"].items())
        title = f"Layers by rank, {when} ({versions}, {job.seconds:.0f} s)"
        screen.say(f"{title}: a number is a layer that was skipped, a dot one that ran")
        screen.skipped(about[0]["layers"], verdict.steps(job))


def _unexpected(screen: Screen, job: Job, what: List[str]) -> bool:
    name = "ddpfix" if job.patched else "unpatched"
    screen.say(f"The last lines of what the {name} ranks printed:")
    screen.say(job.everything(), "dim")
    for line in what:
        screen.say(f"NOT as expected ({name}): {line}", "bold red")
    screen.say("`python -m ddpfix plan` says what ddpfix does in this environment, and why.")
    return False


def _shortened(text: str) -> str:
    """Torch's message without the lines that do not apply here; it lists up to a hundred parameter indices."""
    not_applicable = ("If you already have done", "In addition, you can set")
    lines = [line.strip() for line in text.splitlines()]
    kept = [line for line in lines if line and not line.startswith(not_applicable)]
    return "\n".join(_sentences(line, 400) for line in kept)


def _sentences(line: str, most: int) -> str:
    """Return the whole sentences at the beginning of a line that is too long; whole words where it is one sentence."""
    if len(line) <= most:
        return line
    head = line[:most]
    return head[: head.rfind(". ") + 1] or f"{head.rpartition(' ')[0]} ..."


def strip(layers: Sequence[str], skipped: Optional[Tuple[str, ...]]) -> str:
    """Return the layers side by side: the number of one that was skipped, a dot for one that ran."""
    if skipped is None:
        return "(not reached)"
    return " ".join(layer if layer in skipped else "." for layer in layers)
