"""Notes where this rank's program is and what a step has seen, and hands a row to the writer after each step.

All of it runs in the thread that trains. What goes wrong here ends the trace with a line for debugging, and nothing
else: no error of it reaches the program.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from multiprocessing import util
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import distributed

from ddpfix import log
from ddpfix.patching.site import Site
from ddpfix.system import System
from ddpfix.trace import schema
from ddpfix.trace.writer import Writer

from ..internals import reducer
from ..pipeline import optimizers
from . import header
from .step_row import BACKWARD, FORWARD, OPTIMIZER, OTHER, Memory, StepRow, Waits, moment
from .traced_model import Traced

# A program that wraps a model anew for each epoch is not described for ever.
_MODELS = 64
Token = Optional[Tuple[str, float]]


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Recorder, *args: Any) -> Any:
        try:
            return method(self, *args)
        except Exception as error:
            self._fail(error)

    return call


class Recorder:
    """The trace of this process."""

    def __init__(self, site: Site) -> None:
        self._site = site
        # The process that has opened the file: children that it forks (workers of a loader) leave it alone.
        self._is_on, self._pid = True, 0
        self.writer: Optional[Writer] = None
        self.place = OTHER
        self.steps = 0
        self.row = StepRow()
        self._thread = threading.main_thread().ident
        self._models: List[Traced] = []
        self._layers = self._parameters = self._wrapped = 0
        # The end of the last step, or the first thing that was seen.
        self._ended: Optional[float] = None
        # The last row, which a second optimizer may add to, and which optimizers have stepped in it.
        self._last: Dict[str, Any] = {}
        self._optimizers: List[int] = []
        self._stepping: List[Tuple[int, float, int]] = []
        self._forwards: List[Token] = []
        self._memory, self._waits = Memory(), Waits()
        # When the engine came to the end of the backward that runs, before DDP waits for its buckets.
        self._local: Any = None
        # The settings as the trace has them.
        self._told: Dict[str, Any] = {}
        self._finalize: Any = None
        self.stock_layerdrop = site.settings["layerdrop"] == "stock"
        self._heard = header.Heard(lambda: self.on, lambda: self.steps)

    # The file.

    @property
    def on(self) -> bool:
        return self._is_on and self._pid in (0, System.pid())

    def open(self) -> bool:
        """Make the file of this rank, once; whether the trace is written."""
        if self.writer is not None or not self.on:
            return self.on
        self._thread, self._pid = threading.get_ident(), System.pid()
        grouped = distributed.is_available() and distributed.is_initialized()
        rank = distributed.get_rank() if grouped else int(os.environ.get("RANK", "0"))
        self.writer = Writer(Path(self._site.settings["trace"]), rank)
        self.writer.line(schema.RUN, **header.run(self._site, rank))
        self._heard.begin(self.writer)
        self._is_on = self.writer.open()
        if self.on:
            # Also at the end of a process that multiprocessing has started, which runs no other handlers.
            self._finalize = util.Finalize(None, self._exit, exitpriority=100)
        return self.on

    def end(self) -> None:
        """Undo: write what there is, and close the file."""
        self._is_on = False
        self._heard.end()
        if self._finalize is not None:
            self._finalize.cancel()
            self._finalize = None
        self.settle()
        if self.writer is not None:
            self.writer.close("ended")

    def _exit(self) -> None:
        self._is_on = False
        self.settle()
        if self.writer is not None:
            header.close(self.writer, self.steps)

    def _fail(self, error: BaseException) -> None:
        self._is_on = False
        log.debug(f"the trace ends: {error!r}")
        if self.writer is not None:
            text = f"no rows: {error!r}"
            self.writer.line(schema.EVENT, time=time.time(), step=self.steps, level="warning", text=text)

    @_guarded
    def settle(self) -> None:
        """Complete the rows whose waits have come, in the thread that trains; also in an evaluation."""
        if System.pid() == self._pid and threading.get_ident() == self._thread and not optimizers.is_hidden():
            self._waits.settle()

    # Places.

    def here(self) -> bool:
        """Return whether this thread trains, and the trace is on."""
        return self.on and threading.get_ident() == self._thread

    def enter(self, place: str) -> Token:
        """Enter a place of the program; return None where it is within another one, to which its time belongs."""
        if self.place is not OTHER and self.place is not OPTIMIZER:
            return None
        now = time.perf_counter()
        if self._ended is None:
            self._ended = now
        token = self.place, now
        self.place = place
        return token

    def leave(self, token: Token) -> None:
        if token is None:
            return
        before, began = token
        seconds = time.perf_counter() - began
        self.row.add(self.place, seconds)
        if before is OPTIMIZER:
            self.row.inner += seconds
        self.place = before

    # Forwards.

    def built(self, model: Any) -> Optional[Traced]:
        """Begin to trace a wrapped model; return None where it is not traced."""
        if not self.open() or self._wrapped == _MODELS or self.writer is None:
            return None
        traced = Traced(self, model, self._layers, self._parameters)
        self._wrapped += 1
        self._layers += len(traced.layers)
        self._parameters += len(model.names)
        self._models = [*(each for each in self._models if each.is_alive()), traced]
        self.writer.line(schema.MODEL, **traced.line())
        return traced

    def fed(self, inputs: Any, kwargs: Any) -> None:
        """A training forward of a wrapped model is given these."""
        if self.here():
            try:
                if self.row.fed(inputs, kwargs) and self.writer is not None and self.row.shape is not None:
                    self.writer.begins(self.steps + 1, self.row.shape)
            except Exception as error:
                # A tensor of a class of its own: it has no shape that could be told.
                log.debug(f"inputs are not inspected: {error!r}")

    def forward_begins(self) -> None:
        if self.here():
            self._forwards.append(self.enter(FORWARD))

    def forward_ended(self) -> None:
        if self._forwards:
            self.leave(self._forwards.pop())

    # Backwards.

    def backward_begins(self, tensors: Any) -> Any:
        """Begin a backward; return what :meth:`backward_ended` needs, None for one within another."""
        token = self.enter(BACKWARD) if self.here() else None
        if token is None:
            return None
        self._local = None
        self._forwards.clear()
        return token, self._look_at(tensors)

    @_guarded
    def _look_at(self, loss: Any) -> Any:
        """Note when the gradients of this rank are there; returns the hook that does."""
        if not self.row.backwards:
            for model in self._models:
                model.backward_begins()
        node = loss.grad_fn if isinstance(loss, torch.Tensor) else None
        if node is None or not self._models or optimizers.is_hidden():
            return None
        return node.register_prehook(lambda gradients: reducer.at_end_of_backward(self._local_end))

    def _local_end(self) -> None:
        """Called when all gradients of this rank are there, before DDP waits for its buckets."""
        if self._local is None:
            self._local = moment(self._models[-1].device)

    def backward_ended(self, begun: Any) -> None:
        if begun is not None:
            self.leave(begun[0])
            self._backward_ended(begun[1])

    @_guarded
    def _backward_ended(self, hook: Any) -> None:
        self.row.backwards += 1
        if hook is not None:
            hook.remove()
        if self._local is not None:
            end = moment(self._models[-1].device)
            self.row.waits.append(end - self._local if isinstance(end, float) else (self._local, end))

    # Steps.

    @_guarded
    def step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """The hook before each optimizer's step."""
        if optimizers.is_hidden() or not self.on or (self.writer is not None and not self.here()):
            return
        if self._is_within(id(optimizer)) or not self.open():
            return
        for model in self._models:
            model.step_begins(self.row)
        token = self.enter(OPTIMIZER)
        began = time.perf_counter() if token is None else token[1]
        self._stepping.append((id(optimizer), began, self.row.backwards))

    def _is_within(self, optimizer: int) -> bool:
        """Return whether this is the step of a base class, which a subclass calls in its own."""
        for known, _, backwards in self._stepping:
            if known == optimizer and backwards == self.row.backwards:
                return True
            if known == optimizer:
                # That step has ended with an error.
                self._stepping.clear()
                self.place, self.row.inner = OTHER, 0.0
                break
        return False

    @_guarded
    def step_ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """The hook after each optimizer's step."""
        if optimizers.is_hidden() or not self.here():
            return
        if not self._stepping or self._stepping[-1][0] != id(optimizer):
            return
        _, began, _ = self._stepping.pop()
        now = time.perf_counter()
        self.row.add(OPTIMIZER, now - began - self.row.inner)
        if self.place is OPTIMIZER and not self._stepping:
            self.place = OTHER
        self._row(optimizer, now)

    def _row(self, optimizer: Any, now: float) -> None:
        row, self.row = self.row, StepRow()
        seconds = now - (self._ended if self._ended is not None else now)
        self._ended = now
        self._waits.settle()
        last = self._last
        if not row.backwards and id(optimizer) not in self._optimizers and last:
            # Several optimizers of one step.
            self._optimizers.append(id(optimizer))
            last["total"] = round(last["total"] + seconds, 6)
            last["optimizer"] = round(last["optimizer"] + row.times[OPTIMIZER], 6)
            last["time"] = time.time()
            return
        assert self.writer is not None
        self.steps += 1
        self._optimizers = [id(optimizer)]
        self._last = {**row.values(self.steps, seconds), **self._memory.columns(now, optimizers.device_of(optimizer))}
        self._waits.put(self._last, row.waits)
        self.writer.row(self._last)
        if self._told != log.NOTED.settings:
            self._told = header.tell_settings(self.writer, self._told)
        self._is_on = self.writer.on
