"""Processes of a test: their environment, torch elastic in front of ranks, a time limit, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

ROOT = Path(__file__).resolve().parent.parent.parent
# The code of a command that ran past its limit, as the program `timeout` has it.
OVERDUE = 124
# What C++ prints where a process ends while a thread of gloo lets go of its last work (pytorch issue 190489): one job
# in fifteen on two busy cores, in plain torch.
ENDED_BY_GLOO = "terminate called without an active exception"


# Below the ports that systems give to clients. A client of torch 2.0 tries again at once while nobody listens yet, and
# a connection from a port of the system's choice to that same port connects to itself: then the ranks never meet.
_FIRST, _LAST = 15000, 32000
# What the keyboard sends to a program in the foreground.
KEYBOARD = ("SIGINT", "SIGQUIT")


def free_port() -> int:
    """A port that nobody has, and that no client gets by chance."""
    # A generator of its own: that of the program is seeded.
    draws = random.SystemRandom()
    for _ in range(100):
        port = draws.randint(_FIRST, _LAST)
        with socket.socket() as taken, contextlib.suppress(OSError):
            taken.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no free port between {_FIRST} and {_LAST}")


def foreground(reaction: Any = signal.SIG_DFL) -> None:
    """For ``preexec_fn``: the child reacts to the keyboard's signals as a program in the foreground does.

    A shell without job control starts its background jobs (CI's, and any under nohup) with these signals ignored, and
    what is ignored stays so in every child.
    """
    for name in KEYBOARD:
        signal.signal(getattr(signal, name), reaction)


def environment(more: Optional[Mapping[str, str]] = None) -> Dict[str, str]:
    """A clean environment in which children find this checkout, and ddpfix's sitecustomize if it is not installed."""
    from ddpfix.cli import run

    environ = {name: value for name, value in os.environ.items() if not name.startswith("DDPFIX")}
    folders = [str(ROOT)] if run.start_files() else [str(ROOT / "ddpfix" / "_site"), str(ROOT)]
    environ["PYTHONPATH"] = os.pathsep.join(folders)
    environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    environ.update(more or {})
    return environ


def with_release(more: Optional[Mapping[str, str]] = None) -> Dict[str, str]:
    """The same where a release that is unpacked beside its dependencies is on the path of the tests."""
    environ = environment(more)
    environ["PYTHONPATH"] = os.pathsep.join([environ["PYTHONPATH"], os.environ.get("PYTHONPATH", "")])
    return environ


def elastic(size: int, before: Sequence[str] = ()) -> List[str]:
    """The words in front of a script that torch elastic (by default this interpreter's) is to start on ranks."""
    # How often the agent looks at its ranks: five seconds in older releases.
    often = ("--monitor_interval", "0.2")
    words = (*(before or [sys.executable]), "-m", "torch.distributed.run", "--standalone", *often)
    return [*words, "--nproc_per_node", str(size)]


def run(command: Sequence[str], environ: Mapping[str, str], folder: Path, limit: float) -> Tuple[int, str]:
    """Run a command that may start ranks, anew where gloo's threads have ended it; no process of it is left.

    Past the limit, ranks print their stacks if they listen (:mod:`tests.support.serving`), and all end. Returned are
    the exit code (negative: the signal; :data:`OVERDUE` past the limit) and everything that was printed.
    """
    for _ in range(3):
        code, text = once(command, environ, folder, limit)
        if code in (0, OVERDUE) or ENDED_BY_GLOO not in text:
            break
    return code, text


def once(command: Sequence[str], environ: Mapping[str, str], folder: Path, limit: float) -> Tuple[int, str]:
    """Run it once, whatever ends it."""
    with tempfile.TemporaryFile("w+") as screen:
        child = subprocess.Popen(
            list(command), env=environ, stdout=screen, stderr=subprocess.STDOUT, cwd=str(folder), start_new_session=True
        )
        try:
            code = child.wait(limit)
        except subprocess.TimeoutExpired:
            _stacks(child.pid)
            # torch elastic gives its workers sessions of their own, and ends them when it is terminated.
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(40)
            code = OVERDUE
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        screen.seek(0)
        return code, screen.read()


def script(text: str, folder: Path, *words: str, **environ: str) -> Tuple[int, str]:
    """Run a script on two ranks of torch elastic, as ``train.py`` of a folder."""
    (folder / "train.py").write_text(text)
    return run([*elastic(2), "train.py", *words], environment(environ), folder, 180)


class Ended(NamedTuple):
    """How a process has ended, and what it printed."""

    code: int
    output: str
    errors: str


def of_a_shell(size: int, more: Optional[Mapping[str, str]] = None) -> List[Dict[str, str]]:
    """The environments of ranks that no launcher starts."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size), **(more or {})}
    return [environment({**shared, "RANK": str(rank)}) for rank in range(size)]


def side_by_side(
    commands: Sequence[Sequence[str]], environs: Sequence[Mapping[str, str]], folder: Path = ROOT, limit: float = 150
) -> List[Ended]:
    """Run commands at the same time, each to its own end; fails where one is not over at the limit."""
    pipes: Dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [
        subprocess.Popen(list(command), env=dict(environ), cwd=str(folder), **pipes)
        for command, environ in zip(commands, environs)
    ]
    try:
        texts = [each.communicate(timeout=limit) for each in started]
    finally:
        for each in started:
            each.kill()
    return [Ended(each.returncode, *text) for each, text in zip(started, texts)]


def _stacks(process: int) -> None:
    """Have the processes below this one print their stacks; a process without the handler ends by the signal."""
    for below in _below(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(below, signal.SIGUSR1)
    time.sleep(0.5)


def _below(process: int) -> List[int]:
    """The processes that this one has started, and theirs; none where the system has no list of them."""
    found: List[int] = []
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, file.read_text().split()):
                found += [child, *_below(child)]
    return found
