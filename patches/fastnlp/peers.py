"""What ranks know of each other's failures, from the process group's store or from their processes."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional, Type

from ddpfix.background import Background
from ddpfix.ranks.failures import first_failure
from ddpfix.ranks.failures.last_words import follows
from ddpfix.system import System, Wait

# Seconds: for the first rank to say what it has to say, and for an answer of the store, which may have gone.
_PATIENCE = 5.0
_STORE = 2.0
_HOOK: List[Any] = []
_NOT_FIRST = "did not fail first:"


def formatted(error: BaseException) -> str:
    """Return the error with its traceback, as Python prints it."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()


def claim(rank: int, cause: str) -> bool:
    """Return whether this rank failed first; the others can then read its cause. True where no store answers."""
    message = f"rank {rank} did. Its error:\n{cause[100 - first_failure.LENGTH :]}"
    return bool(_answered(lambda: first_failure.claim(message), True))


def first_cause(rank: int, pids: List[int]) -> str:
    """Return why another rank failed before this one, as far as it can be known, in words ("": it cannot)."""
    cause = _waited_for(pids)
    return f"ddpfix: rank {rank} {_NOT_FIRST} {cause}" if cause else ""


def _waited_for(pids: List[int]) -> str:
    wait, patience = Wait(), _PATIENCE
    ended = ""
    while wait.seconds() < patience:
        cause = _answered(first_failure.cause, None)
        if cause:
            # It may be about to end this rank; if it cannot, this one goes on by itself.
            System.pause(1)
            return str(cause)
        ended = ended or next(filter(None, map(_how_ended, pids)), "")
        if ended:
            patience = min(patience, wait.seconds() + 1)
        wait.pause(0.1)
    return ended


def _answered(ask: Callable[[], Any], without: Any) -> Any:
    """Return the result of ``ask()``; ``without`` if it raises, or does not end in time."""
    result: Dict[str, Any] = {}

    def run() -> None:
        result["answer"] = ask()

    Background(run).join(_STORE)
    return result.get("answer", without)


def is_there(pid: int) -> bool:
    """Return whether a process is still there; one that has ended and has not been waited for is."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _how_ended(pid: int) -> str:
    """Return how a process has ended, in words; "" if it runs. Only of a child more is known than that it exited."""
    where = f"process {pid} of another rank"
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except OSError:
        return "" if is_there(pid) else f"{where} has exited. See what it printed."
    if done == 0:
        return ""
    if os.WIFSIGNALED(status):
        return f"{where} was killed by {_named(os.WTERMSIG(status))}."
    return f"{where} has exited with code {os.WEXITSTATUS(status)}. See what it printed."


def _named(number: int) -> str:
    name = next((known.name for known in signal.Signals if known == number), f"signal {number}")
    return f"{name} (perhaps out of memory)" if name == "SIGKILL" else name


def hook_uncaught(rank: int, pids: List[int]) -> None:
    """Have an uncaught exception reported to the other ranks, or followed by their report, once it is printed."""
    if _HOOK:
        return
    original = sys.excepthook

    def hook(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
        original(kind, error, trace)
        if not _HOOK or issubclass(kind, KeyboardInterrupt) or _NOT_FIRST in str(error):
            return
        message = "" if not follows(error) and claim(rank, formatted(error)) else first_cause(rank, pids)
        if message:
            sys.stderr.write(f"{message}\n")
            sys.stderr.flush()

    _HOOK.extend([original, hook])
    sys.excepthook = hook
    first_failure.tell_elsewhere("fastNLP")


def forget() -> None:
    """Take the hook back, unless somebody has put his own over it: ours then only passes on to the original one."""
    if _HOOK and sys.excepthook is _HOOK[1]:
        sys.excepthook = _HOOK[0]
    _HOOK.clear()
    first_failure.tell_here()
