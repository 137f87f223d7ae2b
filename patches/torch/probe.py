"""``python -m ddpfix probe``: observes a program for some optimizer steps, writes down what was seen, and ends it.

The process ends within the hook of the last step, by ``os._exit``: SystemExit might be caught, and code that runs while
an error is on its way might write a checkpoint. What is open is flushed first; nothing else of the program runs.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import json
import logging
import multiprocessing
import os
import stat
import sys
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Dict, List

import torch

from ddpfix import log
from ddpfix.monitor.exit import last_words
from ddpfix.monitor.watch import MainThread
from ddpfix.patching.site import Site
from ddpfix.probing.program import Program
from ddpfix.probing.result import FLAG, Result
from ddpfix.probing.subject import Subject

from ..common import bypass, lines

# The number of steps, and the file for the command that has started this program: set by the command line alone.
VARIABLE = "_DDPFIX_PROBE"


def stage(site: Site, module: ModuleType, owner: Any) -> None:
    plan = json.loads(os.environ.get(VARIABLE) or "{}")
    if plan:
        run = Run(plan["steps"], Path(plan["file"]))
        run.start()
        site.at_undo(run.stop)


def group(site: Site, module: ModuleType, owner: Any) -> None:
    """A group of one process: gloo where the program asks for NCCL, and there is no GPU."""
    site.wrap(module, "init_process_group", _group)


def _group(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    given = args[0] if args else kwargs.get("backend")
    if str(given).lower() != "nccl" or torch.cuda.is_available():
        return wrapped(*args, **kwargs)
    log.info("no GPU found: the probe uses gloo instead of nccl")
    # NCCL's group may be bound to a device, gloo's may not.
    kwargs = {name: value for name, value in kwargs.items() if name not in ("backend", "device_id", "pg_options")}
    return wrapped("gloo", *args[1:], **kwargs)


class Run:
    """One process under the probe, which leaves its findings in a file for the command."""

    def __init__(self, steps: int, file: Path) -> None:
        self._wanted, self._file = steps, file
        self._process = os.getpid()
        self._main = MainThread()
        self._past: Dict[str, None] = {}
        self._said = _Said()
        self._program = Program(steps, self._called_past, self._finish)

    def start(self) -> None:
        """Observe, and keep what ddpfix says."""
        log.debug(f"the probe ends this process after {self._wanted} optimizer steps")
        logging.getLogger("ddpfix").addHandler(self._said)
        self._program.start()
        atexit.register(self._ended)

    def stop(self) -> None:
        self._program.stop()
        logging.getLogger("ddpfix").removeHandler(self._said)
        atexit.unregister(self._ended)

    def _called_past(self, subject: Subject, module: Any, frame: FrameType) -> None:
        """Note a call past the wrapper: of which class, which part of it, and where it stands."""
        part, kind = subject.modules.get(module, ""), type(subject.model).__name__
        called = f"{part} of a {kind}" if part else f"a {kind}"
        advice = "Call the wrapped model" + ("" if part else " (DDPFIX_BYPASS=route does it for you)")
        where = (
            f"{bypass.line(bypass.program(frame))} calls {called} past its DistributedDataParallel wrapper in training"
        )
        self._past[f"{where}: its gradients are not averaged. {advice}"] = None

    def _finish(self) -> None:
        """The last step has been made: end this process with exit code 0, without the program's own handlers."""
        if os.getpid() != self._process:
            return
        try:
            self._write(True)
        except Exception as error:
            log.error(f"the probe could not write what it found: {error!r}")
        for child in multiprocessing.active_children():
            if child.daemon:
                child.terminate()
        for stream in (sys.stdout, sys.stderr, *_open_files()):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(0)

    def _ended(self) -> None:
        """The program has ended by itself."""
        if os.getpid() == self._process:
            with contextlib.suppress(Exception):
                self._write(False)

    def _write(self, complete: bool) -> None:
        if not log.first_rank():
            return
        program, error = self._program, None if complete else self._main.uncaught()
        done, so_far = program.steps, f"after {program.steps} of {self._wanted} optimizer steps"
        end = f"the program ended by itself {so_far}"
        if complete:
            end = f"ended after {done} optimizer step{'' if done == 1 else 's'}"
        elif error is not None:
            end = f"the program failed {so_far}: {last_words.words(error)}"
        # Another process of the program may have written before (an agent has no steps).
        if complete or done or not self._file.exists():
            found = {
                "complete": complete,
                "end": end,
                "steps": done,
                "past": list(self._past),
                "said": self._said.lines,
                "notes": [f"nothing was observed from {program.failure!r} on"] if program.failure is not None else [],
                "models": [_with_line(result).as_dict() for result in program.results()],
            }
            part = self._file.with_name(f"{self._file.name}.{os.getpid()}")
            part.write_text(json.dumps(found), encoding="utf-8")
            part.replace(self._file)


def _with_line(result: Result) -> Result:
    """Return a result with the line of the toolkit that has called the optimizer; none once the program is over."""
    toolkit = lines.of(lines.callers())
    # A toolkit may set the flag by itself, unless there is checkpointing.
    by_itself = toolkit.find == toolkit.not_reentrant and not result.checkpointing
    if result.setting == FLAG and not toolkit.is_plain and not by_itself:
        result.line = f"in {toolkit.name}: {toolkit.find}"
    return result


class _Said(logging.Handler):
    """Keeps what ddpfix says."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: List[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _open_files() -> List[Any]:
    """Return the program's own files on disk, text first; a full pipe would block."""
    found = [each for each in gc.get_objects() if issubclass(type(each), (io.TextIOWrapper, io.BufferedWriter))]
    return sorted((each for each in found if _is_on_disk(each)), key=lambda each: isinstance(each, io.BufferedWriter))


def _is_on_disk(file: Any) -> bool:
    try:
        return not file.closed and file.writable() and stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except (OSError, ValueError, AttributeError):
        return False
