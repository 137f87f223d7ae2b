"""``ddpfix demo``: two real ranks on the CPU train a tiny model, first unpatched, then under ddpfix.

Nothing is loaded from the network, no GPU is needed, and nothing is simulated: the error is torch's own, and hooks on
the layers record which ones ran.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Optional

from ddpfix.matrix import loader, settings


def show(model: str, loop: str, steps: int) -> int:
    """Run both trainings and print what happened.

    Returns:
        0 if the unpatched training failed as expected and ddpfix passed, 1 if not, 2 if something is missing, 130
        after Ctrl-C.

    Raises:
        SettingsError: a ``DDPFIX_*`` variable has a name or a value that is not known.
    """
    problem = _problem(loop, steps)
    if problem is not None:
        sys.stderr.write(f"ddpfix: {problem}\n")
        return 2
    settings.read({}, loader.load().patches)
    from ddpfix.cli.demo import ranks, story

    folder = Path(tempfile.mkdtemp(prefix="ddpfix-demo-"))
    try:
        with ranks.ending_in_order():
            return story.show(model, loop, steps, folder)
    except KeyboardInterrupt:
        sys.stderr.write("\nddpfix: interrupted; the ranks have been ended\n")
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _problem(loop: str, steps: int) -> Optional[str]:
    """Return why the demo cannot run here, in one line, or None."""
    if steps < 2:
        return "the demo needs at least two steps: without ddpfix, training fails in the second one"
    # Trainer has needed accelerate since transformers 4.30; the releases before are older than the extra allows.
    needed = ("torch", "transformers") if loop == "plain" else ("torch", "transformers", "accelerate")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    return f"the demo with --loop {loop} needs {' and '.join(missing)}: pip install 'ddpfix[demo]'"
