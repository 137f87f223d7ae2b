"""What a rank says of its failure: which rank, in which step, the error, and the user's line where it was raised."""

from __future__ import annotations

import contextlib
import os
import re
import traceback
from types import TracebackType
from typing import Callable, Iterator, List, NamedTuple, Optional, Tuple

from ddpfix import log
from ddpfix.exchange.failure_records import PeerFailedError
from ddpfix.groups import calls
from ddpfix.patching import tracebacks
from ddpfix.rules import endings
from ddpfix.rules.finding import Finding
from ddpfix.user_code import is_users

# How much of an error's own message is told to the other ranks, and how much where ddpfix has explained it.
_LENGTH, _EXPLAINED = 400, 1200
# What begins an explanation within a message, or a note on one.
_OURS = "ddpfix: "
# What gloo, NCCL and the store say when another rank is gone.
_FOLLOWS = re.compile(
    r"connection (was )?(closed|reset|refused) by (remote |local )?peer|broken pipe|remote process exited"
    r"|recvValue failed|sendBytes failed|failed to recv"
    # torch's ProcessGroupNCCL and torch_npu's ProcessGroupHCCL, where a rank no longer takes part in a collective.
    r"|[NH]CCL communicator was aborted|watchdog caught collective operation timeout",
    re.IGNORECASE,
)
# How torch passes an error of a data-loader worker on: in the message of one of the same type.
_WORKER = "Original Traceback (most recent call last):"
_LINE = re.compile(r'File "([^"]+)", line (\d+)')


class Printed(NamedTuple):
    """An error that a command-line library has printed before it exits, in one line, and its traceback."""

    words: str
    trace: str
    follows: bool


# One at most.
_PRINTED: List[Printed] = []


def exits(exit: SystemExit) -> None:
    """Note the error for which a library ends the program: hydra prints what its task raises, and calls sys.exit."""
    error = exit.__context__
    if exit.code and isinstance(error, Exception):
        _PRINTED[:] = [Printed(words(error), tracebacks.text(error), follows(error))]


def printed() -> Optional[Printed]:
    """Return the error for which a library ends the program; None where there is none."""
    return next(iter(_PRINTED), None)


def follows(error: BaseException) -> bool:
    """Return whether this error says no more than that another rank has exited."""
    if isinstance(error, PeerFailedError):
        return True
    return isinstance(error, RuntimeError) and _FOLLOWS.search(str(error)) is not None


def finding(rank: int, step: Optional[int], error: BaseException) -> Finding:
    """Return "rank 1 failed in step 41: IndexError: list index out of range (aug.py:12)", and what ddpfix has added."""
    told, explained = _parts(error)
    return endings.failed([rank], step, told, explained, follows(error))


def words(error: BaseException) -> str:
    """Return the error in one line, with the place where it was raised."""
    return ". ".join(filter(None, _parts(error)))


def _parts(error: BaseException) -> Tuple[str, str]:
    """Return the error with the place where it was raised, and what ddpfix has added to it."""
    (told, lines), explained = _told(error), _explanation(error)
    if not explained:
        return f"{told[:_LENGTH]}{_place(lines)}", ""
    # Of torch's text no more than the sentence by which everybody knows it.
    sentence = f"{told.partition('. ')[0][:_LENGTH].rstrip('.')}{_place(lines)}"
    return sentence, explained[: _EXPLAINED - len(sentence) - 2]


def explain(error: BaseException, text: str) -> None:
    """Add an explanation to an error, below its own message; the last words of this rank have it, too."""
    add_note = getattr(error, "add_note", None)
    if add_note is not None:
        add_note(f"{_OURS}{text}")
    elif str(error) == "".join(map(str, error.args)):
        # Before Python 3.11: in place, so that whoever catches it by its type finds what was raised.
        error.args = (f"{error}\n{_OURS}{text}",)


@contextlib.contextmanager
def explained(why: Callable[[BaseException], Optional[str]]) -> Iterator[None]:
    """Within it, an error gets the explanation that ``why(error)`` returns, if any."""
    try:
        yield
    except Exception as error:
        try:
            text = why(error)
        except Exception as failure:
            log.debug(f"an error could not be explained: {failure!r}")
            text = None
        if text:
            explain(error, text)
        raise


def call(error: BaseException) -> str:
    """Return the collective in which an error was raised, with its sizes and the user's line; "" where it was none."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    known = calls.of(frames).text
    return f"{known}{_place(lines_of(error.__traceback__))}" if known else ""


def _told(error: BaseException) -> Tuple[str, List[Tuple[str, int]]]:
    """Return the error in one line, and the places in its traceback, the innermost one last."""
    head, found, inner = str(error).partition(_WORKER)
    inner = inner.partition(f"\n{_OURS}")[0]
    if found and inner.strip():
        return inner.strip().splitlines()[-1].strip(), [(file, int(line)) for file, line in _LINE.findall(inner)]
    # The first line of the message, up to the end of its last sentence where it breaks within one.
    first, _, after = head.strip().partition("\n")
    first = first.rstrip()
    message = (first[: first.rfind(". ") + 1] if after[:1].islower() else "") or first
    return f"{type(error).__name__}{': ' + message if message else ''}", lines_of(error.__traceback__)


def _explanation(error: BaseException) -> str:
    """Return what ddpfix has added to an error: the parameters by name, cause and cure, in one line."""
    text = "\n".join([str(error), *map(str, getattr(error, "__notes__", ()))])
    _, found, ours = text.partition(f"\n{_OURS}")
    parts: List[str] = []
    for line in ours.splitlines() if found else ():
        if line.startswith(_OURS) or not parts:
            parts.append(line[len(_OURS) if line.startswith(_OURS) else 0 :].strip())
        else:
            parts[-1] += f"{'' if parts[-1].endswith(':') else ','} {line.strip()}"
    return "; ".join(parts)


def lines_of(trace: Optional[TracebackType]) -> List[Tuple[str, int]]:
    """Return the file and line of each frame of a traceback."""
    return [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace)]


def _place(lines: List[Tuple[str, int]]) -> str:
    """Return the innermost line of the user's own files, else the innermost one."""
    own = [each for each in lines if is_users(each[0])] or lines
    return f" ({os.path.basename(own[-1][0])}:{own[-1][1]})" if own else ""
