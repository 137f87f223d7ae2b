"""What ddpfix prints: few lines, on stderr, from rank 0 unless they concern one rank alone."""

from __future__ import annotations

import copy
import logging
import os
import sys
import threading
import weakref
from functools import lru_cache
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from ddpfix.system import System

# A finding of ddpfix.rules.
Data = Dict[str, Any]
_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}
# Where launchers say which rank a process is: torchrun; srun, Open MPI, other MPIs; Lightning, for ranks of one node.
_LAUNCHED = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "LOCAL_RANK")
_MOST, _LONGEST = 200, 400
_RECORD = logging.LogRecord("ddpfix", logging.INFO, __file__, 0, "", (), None)


class Noted:
    """What the log remembers, which knows no site.

    Attributes:
        settings: of a toolkit: what was asked for, what is in force, and a note, by name. The last word on each counts.
        logged: lines that are logged once, by the object that they are about, for as long as it lives; by this object
            those that are logged once an activation.
        heard: lines that listeners get once.
        listeners: called with the level and the text of each line from info on, and of each diagnosis, on every rank,
            whether it is printed or not; and with the finding that it tells, as data. Who listens takes itself out.
        unlisted: the running threads that threading does not list (ddpfix.unlisted_thread): making a record in one of
            them would list it.
        rank: in the last process group that there was when something was to be logged.
    """

    def __init__(self) -> None:
        self.settings: Dict[str, Tuple[str, str, str]] = {}
        self.logged: weakref.WeakKeyDictionary[object, Set[str]] = weakref.WeakKeyDictionary()
        self.heard: Set[str] = set()
        self.listeners: List[Callable[[str, str, Optional[Data]], None]] = []
        self.unlisted: Set[int] = set()
        self.rank = "0"

    def forget(self) -> None:
        """Drop what an activation has noted and logged (undo): the next one has a summary and lines of its own."""
        for noted in (self.settings, self.logged, self.heard):
            noted.clear()


NOTED = Noted()


class _Named(logging.Formatter):
    """Every line begins with the name ddpfix, once."""

    def format(self, record: logging.LogRecord) -> str:
        # A paragraph has a line for each of its sentences.
        text = super().format(record).replace("\n", "\nddpfix:   ")
        return text if text.startswith("ddpfix ") else f"ddpfix: {text}"


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg, unused-ignore]
    """Prints on stderr, but not what the program's own handlers get (``propagate``): no line stands twice."""

    def filter(self, record: logging.LogRecord) -> bool:  # type: ignore[override, unused-ignore]
        logger = logging.getLogger("ddpfix")
        return not (logger.propagate and logger.root.handlers) and bool(super().filter(record))


@lru_cache(maxsize=None)
def _stderr() -> logging.Handler:
    """Return the handler of ddpfix, which is put in place once, unless the program has configured the logger before."""
    handler, logger = _Stderr(sys.stderr), logging.getLogger("ddpfix")
    handler.setFormatter(_Named())
    logger.setLevel(logging.INFO)
    if not logger.handlers:
        logger.addHandler(handler)
        logger.propagate = False
    return handler


def _logger() -> logging.Logger:
    """Return the logger, as the program has configured it: docs/logging.md."""
    handler, logger = _stderr(), logging.getLogger("ddpfix")
    # By default dictConfig() and fileConfig() disable each logger that they do not name.
    logger.disabled = False
    if not logger.handlers:
        # They name it, and give it no handler: those of the root logger get its lines.
        logger.addHandler(handler)
        logger.propagate = True
    return logger


def set_level(name: str) -> None:
    _logger().setLevel(_LEVELS[name])


def is_debug() -> bool:
    """Return whether ddpfix tells everything (``DDPFIX_LOG=debug``)."""
    return _logger().isEnabledFor(logging.DEBUG)


def _write(level: int, message: str) -> None:
    logger = _logger()
    if threading.get_ident() not in NOTED.unlisted and logging.getLogRecordFactory() is not logging.LogRecord:
        logger.log(level, message)
    elif logger.isEnabledFor(level):
        logger.handle(_record(level, message))


def _record(level: int, message: str) -> logging.LogRecord:
    """Make a record without asking for the thread, the process or the time, of which a program may count the calls."""
    record = copy.copy(_RECORD)
    record.levelno, record.levelname, record.msg = level, logging.getLevelName(level), message
    record.thread, record.process = threading.get_ident(), System.pid()
    record.threadName = "ddpfix" if record.thread in NOTED.unlisted else threading.current_thread().name
    passed, record.created = System.time() - record.created, System.time()
    record.msecs, record.relativeCreated = record.created % 1 * 1000, record.relativeCreated + passed * 1000
    return record


def setting(name: str, requested: object, effective: object, note: str = "") -> None:
    """Record a setting of a toolkit that was read, for the trace; a line for the user is another matter.

    Args:
        name: as the user writes it.
        note: what became of it on the way.
    """
    if name in NOTED.settings or len(NOTED.settings) < _MOST:
        asked = "not set" if requested is None else str(requested)
        NOTED.settings[name] = (asked[:_LONGEST], str(effective)[:_LONGEST], note)


def first_rank() -> bool:
    """Return whether this process is rank 0; true where nothing says which one it is.

    Its process group knows. Without one, its launcher does, in the first of :data:`_LAUNCHED` that is set; where there
    is none either (``mp.spawn``), the last group that it had.
    """
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            NOTED.rank = str(distributed.get_rank())
            return NOTED.rank == "0"
    except Exception:
        # The module is being imported, or a group is being taken down, in this very moment.
        pass
    told = next((os.environ[name] for name in _LAUNCHED if os.environ.get(name)), None)
    return (told or NOTED.rank) == "0"


def _tell(level: str, message: str, finding: Optional[Data] = None) -> None:
    for listener in NOTED.listeners:
        try:
            listener(level, message, finding)
        except Exception as failure:
            _write(logging.DEBUG, f"a line was not heard: {failure!r}")


def info(*messages: str) -> None:
    """Print a line of information, from rank 0; listeners get its parts one by one."""
    for each in messages:
        _tell("info", each)
    if first_rank():
        _write(logging.INFO, "; ".join(messages))


def debug(message: str) -> None:
    _write(logging.DEBUG, message)


def warning(message: str) -> None:
    """A line that a user has to see: once an activation, from rank 0."""
    if NOTED.listeners and message not in NOTED.heard:
        NOTED.heard.add(message)
        _tell("warning", message)
    if first_rank() and first_time(message):
        _write(logging.WARNING, message)


def on_every_rank(message: str) -> None:
    """A line that a user has to see, once an activation, from every rank: it is in the log of each of them."""
    if first_time(message):
        _tell("warning", message)
        _write(logging.WARNING, message)


def from_rank(rank: int, message: str, warns: bool) -> None:
    """Print a line from a rank other than the first one, which went to listeners when it was logged there."""
    _write(logging.WARNING if warns else logging.INFO, f"on rank {rank}: {message}")


def once(message: str, about: object = None) -> None:
    """A line of information, once an activation, or once for an object to which a weak reference is possible."""
    if first_time(message, about):
        info(message)


def first_time(message: str, about: object = None) -> bool:
    """Return whether this is the first call with this message in this activation, or for this object."""
    logged = NOTED.logged.setdefault(NOTED if about is None else about, set())
    if message in logged:
        return False
    logged.add(message)
    return True


def record(level: str, message: str, finding: Optional[Data] = None) -> None:
    """Hand a text to the trace without printing it: it is part of an error that the program raises."""
    _tell(level, message, finding)


def error(message: str, finding: Optional[Data] = None) -> None:
    """Log why this rank ends: from every rank, because the others may not know."""
    _tell("error", message, finding)
    _write(logging.ERROR, message)
