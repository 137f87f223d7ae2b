"""Notes where this rank's program is and what a step has seen, and hands a row to the writer after each step.

All of it runs in the thread that trains. What goes wrong here ends the trace with a line for debugging, and nothing
else: no error of it reaches the program.
"""

from __future__ import annotations

import os
import threading
import time
from multiprocessing import util
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import distributed

from ddpfix import log
from ddpfix.patching.site import Site
from ddpfix.trace import schema
from ddpfix.trace.writer import Writer, forget, watch

from ..internals import reducer
from ..pipeline import optimizers
from . import async_values, header
from .step_row import Epochs, Memory, StepRow, add_step
from .traced_model import Traced

# A program that wraps a model anew for each epoch is not described for ever.
_MODELS = 64
_at_end = reducer.at_end_of_backward


class Recorder:
    """The trace of this process."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.on = True
        self.writer: Optional[Writer] = None
        self.place, self._since = schema.OTHER, time.perf_counter()
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
        self._forwards: List[Optional[Tuple[str, float]]] = []
        self._memory, self._epochs = Memory(), Epochs()
        self._numbers, self._pending = async_values.Numbers(), async_values.Pending()
        # When the engine came to the end of the backward that runs, before DDP waits for its buckets.
        self._local: Any = None
        # The patches as the trace has them.
        self._head: List[Dict[str, str]] = []
        # The settings as the trace has them.
        self._told: Dict[str, Any] = {}
        self._finalize: Any = None
        self.stock_layerdrop = site.settings["layerdrop"] == "stock"
        self._heard = header.Heard(lambda: self.on, lambda: self.steps)

    # The files.

    def open(self) -> bool:
        """Make the files of this rank, once; whether the trace is written."""
        if self.writer is not None or not self.on:
            return self.on
        self._thread = threading.get_ident()
        rank = distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else None
        rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        writer = Writer(Path(self._site.settings["trace"]), rank, lambda: (self.steps, self.place, self._since))
        self.writer = writer
        head = header.run(self._site, rank)
        self._head = head["patches"]
        writer.line(schema.RUN, **head)
        self._heard.begin(writer)
        self.on = writer.open()
        if self.on:
            watch(self)
            # Also at the end of a process that multiprocessing has started, which runs no other handlers.
            self._finalize = util.Finalize(None, self._exit, exitpriority=100)
        return self.on

    def end(self) -> None:
        """Undo: write what there is, and close the files."""
        self.on = False
        self._heard.end()
        if self._finalize is not None:
            self._finalize.cancel()
            self._finalize = None
        forget(self)
        self._settle()
        if self.writer is not None:
            self.writer.close("ended")

    def _exit(self) -> None:
        self.on = False
        self._settle()
        if self.writer is not None:
            header.tell_explanation(self.writer, self.steps)
            how, found = header.how_it_ends(self.writer.rank)
            self.writer.close(how, None if found is None else found.data())

    def forked(self) -> None:
        """In a child: it leaves no trace."""
        self.on = False
        self._finalize = None
        if self.writer is not None:
            self.writer.abandon()

    def _fail(self, error: BaseException) -> None:
        self.on = False
        log.debug(f"the trace ends: {error!r}")
        if self.writer is not None:
            self.writer.line(
                schema.EVENT, time=time.time(), step=self.steps, level="warning", text=f"no rows: {error!r}"
            )

    # Places.

    def here(self) -> bool:
        """Return whether this thread trains, and the trace is on."""
        return self.on and threading.get_ident() == self._thread

    def enter(self, place: str) -> Optional[Tuple[str, float]]:
        """Enter a place of the program; return None where it is within another one, to which its time belongs."""
        if self.place is not schema.OTHER and self.place is not schema.OPTIMIZER:
            return None
        now = time.perf_counter()
        if self._ended is None:
            self._ended = now
        token = self.place, now
        self.place, self._since = place, now
        return token

    def leave(self, token: Optional[Tuple[str, float]]) -> None:
        if token is None:
            return
        before, began = token
        now = time.perf_counter()
        self.row.add(self.place, now - began)
        if before is schema.OPTIMIZER:
            self.row.inner += now - began
        self.place, self._since = before, now

    # Batches.

    def read(self, iterator: Any) -> None:
        try:
            self._epochs.read(iterator)
        except Exception as error:
            self._fail(error)
        # In an evaluation, too, no row waits for the next step.
        self._settle()

    def _settle(self) -> None:
        """Complete the rows whose values have come, in the thread that trains."""
        if threading.get_ident() != self._thread or optimizers.is_hidden():
            return
        try:
            self._pending.settle()
        except Exception as error:
            self._fail(error)

    # Forwards.

    def built(self, model: Any) -> Optional[Traced]:
        """Begin to trace a wrapped model; return None where it is not traced."""
        if not self.open() or self._wrapped == _MODELS or self.writer is None:
            return None
        traced = Traced(self, model, self._wrapped, self._layers, self._parameters)
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
                samples = self._epochs.take()
                if samples is not None:
                    self.row.samples = (self.row.samples or 0) + samples
                if self.row.seen.fed(inputs, kwargs) and self.writer is not None:
                    self.writer.begins(self.steps + 1, self.row.seen.shape)
            except Exception as error:
                # A tensor of a class of its own: it has no shape that could be told.
                log.debug(f"inputs are not inspected: {error!r}")

    def forward_begins(self) -> None:
        if self.here():
            self._forwards.append(self.enter(schema.FORWARD))

    def forward_ended(self) -> None:
        if self._forwards:
            self.leave(self._forwards.pop())

    # Backwards.

    def backward_begins(self, tensors: Any) -> Any:
        """Begin a backward; return what :meth:`backward_ended` needs, None for one within another."""
        if not self.here():
            return None
        token = self.enter(schema.BACKWARD)
        if token is None:
            return None
        self._local, hook = None, None
        self._forwards.clear()
        try:
            if not self.row.backwards:
                for model in self._models:
                    model.backward_begins()
            hook = self._look_at(tensors if isinstance(tensors, torch.Tensor) else None)
        except Exception as error:
            self._fail(error)
        return token, hook

    def backward_ended(self, begun: Any) -> None:
        if begun is None:
            return
        token, hook = begun
        self.leave(token)
        try:
            self._backward_ended(hook)
        except Exception as error:
            self._fail(error)

    def _look_at(self, loss: Any) -> Any:
        if loss is None or optimizers.is_hidden():
            return None
        value = self._numbers.of_loss(loss)
        if value is not None:
            self.row.losses.append(value)
        node = loss.grad_fn
        if node is None or not self._models:
            return None
        return node.register_prehook(lambda gradients: _at_end(self._local_end))

    def _local_end(self) -> None:
        """Called when all gradients of this rank are there, before DDP waits for its buckets."""
        if self._local is None:
            self._local = async_values.moment(self._models[-1].device)

    def _backward_ended(self, hook: Any) -> None:
        self.row.backwards += 1
        if hook is not None:
            hook.remove()
        if self._local is not None:
            self.row.waits.append(async_values.between(self._local, self._models[-1].device))

    def scaled(self, given: Any, made: Any) -> None:
        """Record that a gradient scaler has made a larger loss of one."""
        if self.here():
            self._numbers.scaled(given, made)

    def clipped(self, norm: Any) -> None:
        """``clip_grad_norm_`` has returned."""
        if not self.here() or optimizers.is_hidden():
            return
        try:
            self.row.norm = self._numbers.of(norm)
        except Exception as error:
            self._fail(error)

    # Steps.

    def step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """The hook before each optimizer's step."""
        if optimizers.is_hidden() or not self.on or (self.writer is not None and not self.here()):
            return
        try:
            if self._is_within(id(optimizer)) or not self.open():
                return
            for model in self._models:
                model.step_begins(self.row)
            token = self.enter(schema.OPTIMIZER)
            began = time.perf_counter() if token is None else token[1]
            self._stepping.append((id(optimizer), began, self.row.backwards))
        except Exception as error:
            self._fail(error)

    def _is_within(self, optimizer: int) -> bool:
        """Return whether this is the step of a base class, which a subclass calls in its own."""
        for known, _, backwards in self._stepping:
            if known == optimizer and backwards == self.row.backwards:
                return True
            if known == optimizer:
                # That step has ended with an error.
                self._stepping.clear()
                self.place, self.row.inner = schema.OTHER, 0.0
                break
        return False

    def step_ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """The hook after each optimizer's step."""
        if optimizers.is_hidden() or not self.here():
            return
        try:
            if not self._stepping or self._stepping[-1][0] != id(optimizer):
                return
            _, began, _ = self._stepping.pop()
            now = time.perf_counter()
            self.row.add(schema.OPTIMIZER, now - began - self.row.inner)
            if self.place is schema.OPTIMIZER and not self._stepping:
                self.place, self._since = schema.OTHER, now
            self._row(optimizer, now)
        except Exception as error:
            self._fail(error)

    def _row(self, optimizer: Any, now: float) -> None:
        row, self.row = self.row, StepRow()
        seconds = now - (self._ended if self._ended is not None else now)
        self._ended = now
        self._settle()
        if not row.backwards and id(optimizer) not in self._optimizers and self._last:
            # Several optimizers of one step.
            self._optimizers.append(id(optimizer))
            add_step(self._last, seconds, row)
            return
        self.steps += 1
        self._optimizers = [id(optimizer)]
        memory = self._memory.columns(now, optimizers.device_of(optimizer))
        self._last = {**row.values(self.steps, seconds), **memory, "epoch": self._epochs.now()}
        assert self.writer is not None
        self._pending.add(self._last)
        self.writer.row(self._last)
        if self.steps == 1:
            self._head = header.tell_patches(self._site, self.writer, self._head)
        if self._told != log.NOTED.settings:
            self._told = header.tell_settings(self.writer, self._told)
        self.on = self.writer.on
