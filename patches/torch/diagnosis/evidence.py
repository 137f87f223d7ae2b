"""What is known of the last step of a model under DDP, should DDP end with an error.

DDP raises at the next forward, when the graph of the step is gone. So the first steps note which modules run, and after
each backward the reducer is asked (one call in C++) whether it has finished: if not, the graph of the loss is still
there, and is looked at. A step that DDP finishes pays for the question only.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch
from torch.nn.modules import module as modules

from ddpfix import log
from ddpfix.models import graph, internals

from ...common import lines
from ..internals import reducer
from ..pipeline import ddp
from ..pipeline.backward import Backwards
from ..unused.states import REDUCTION

PLACE = "diagnosis"
UNFINISHED = "Expected to have finished reduction in the prior iteration"
TWICE = "Expected to mark a variable ready only once"
OURS = "\nddpfix: "

# Forwards in which the modules that run are noted: an error mostly comes after the first one.
NOTED_FORWARDS = 2
# Steps that another backward has finished after all, after which nobody asks the reducer any more.
_FALSE_ALARMS = 2
# Frames that are looked at for a caller that compiles.
_CALLERS = 40
# Outputs that are kept in mind.
_OUTPUTS = 16
Output = Tuple[Any, "weakref.ref[Any]"]
Complete = Callable[["Evidence", BaseException, Any], None]


class Evidence:
    """The evidence on one model.

    Args:
        lines_of: returns the lines of the toolkit that has wrapped it.
        complete: called with this, an error of torch's and what a backward was called for.

    Attributes:
        steps: steps that were to be reduced so far; forwards before one backward are of one step.
        ran: the ids of the modules that ran in the last step; None where that was not noted.
        ran_before: the ids of those that ran in any step.
        forwards: forwards since the last backward.
        backwards: backwards since the last forward.
        missing: the numbers of the parameters without gradient, if a backward has left DDP unfinished.
        reached: the numbers of the parameters in the graphs of the losses of the step; None where that is not known.
        outside: names of outputs that no loss of the step has used -> the numbers of the parameters behind them alone.
        hides: whether a reentrant checkpoint hides a part of these graphs.
        is_inside: whether backwards are made while the wrapped module's own forward runs.
        number: how many errors were explained: what ranks compare has a name of its own each time.
    """

    def __init__(
        self, model: ddp.Wrapped, observed: Backwards, wrapped_by: Tuple[str, ...], complete: Complete
    ) -> None:
        self.model, self.wrapped_by = model, wrapped_by
        self._observed, self._complete = observed, complete
        wrapper = model.wrapper
        self._numbers = {id(parameter): number for number, parameter in enumerate(model.parameters)}
        self.steps = self.forwards = self.backwards = self.number = 0
        self.ran: Optional[Set[int]] = None
        self.ran_before: Set[int] = set()
        self.missing: List[int] = []
        self.reached: Optional[Set[int]] = None
        self.outside: Dict[str, Set[int]] = {}
        self.hides = self.is_inside = False
        self._now: Optional[Set[int]] = None
        self._hook: Any = None
        self._outputs: Sequence[Output] = ()
        # What the outputs lead to, which may be dropped before the backward: noted in the first steps.
        self._behind: Dict[str, Set[int]] = {}
        self._armed = False
        # The backwards of this process before the last forward.
        self._alarms = self._noted = self._count = 0
        self._is_plain = REDUCTION.of(model) is None and not wrapper.find_unused_parameters
        self._asks = self._is_plain and reducer.AT_ANY_TIME

    @property
    def lines(self) -> lines.Lines:
        """The lines of the toolkit that has wrapped it."""
        return lines.of(self.wrapped_by)

    # Forwards.

    def forward_begins(self) -> None:
        """A forward with gradients begins."""
        try:
            wrapper, self._count = self.model.wrapper, self._observed.count
            is_noted = self._is_plain and self._noted < NOTED_FORWARDS and wrapper.require_backward_grad_sync
            if is_noted and not _compiles(wrapper):
                noted = self._now = set()
                # For all modules at once, and only during this forward: nothing is put on the model itself.
                self._hook = modules.register_module_forward_pre_hook(lambda module, _: noted.add(id(module)))
        except Exception as problem:
            self._give_up(problem)

    def forward_ended(self, output: Any) -> None:
        """A forward with gradients has ended."""
        try:
            self._forget_hook()
            self.is_inside = self._observed.count > self._count
            if self.model.wrapper.require_backward_grad_sync:
                self._armed_by(output)
        except Exception as problem:
            self._give_up(problem)

    def _armed_by(self, output: Any) -> None:
        """A forward has ended whose gradients are reduced."""
        self._outputs = _kept(output)
        self.reached, self._armed = None, True
        if self.missing:
            # DDP did not mind: another backward has finished what one had left.
            self._false_alarm()
        if self.backwards or not self.steps:
            self.steps, self.forwards = self.steps + 1, 0
        self.forwards += 1
        self._noted += 1
        self.backwards = 0
        self.ran, self._now = self._now, None
        self.ran_before |= self.ran or set()
        is_noted = self._is_plain and self._noted <= NOTED_FORWARDS and len(self._outputs) > 1
        self._behind = self._led_to() if is_noted else {}

    def _give_up(self, problem: Exception) -> None:
        log.debug(f"stopped observing the steps of a model: {problem!r}")
        self.end()
        self.model.detach(PLACE)

    def forward_failed(self, error: BaseException) -> None:
        """A forward has failed, perhaps because DDP has not finished the step before."""
        try:
            self._forget_hook()
            if is_torchs(error):
                self._complete(self, error, None)
        except Exception as problem:
            log.debug(f"an error of DDP could not be explained: {problem!r}")

    def _forget_hook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    # Backwards.

    def backward_failed(self, error: BaseException, roots: Any) -> None:
        """A backward has failed, perhaps that of another model."""
        if is_torchs(error) and self.model.wrapper is not None and self.model.thread == threading.get_ident():
            self._complete(self, error, roots)

    def backward_ended(self, roots: Any) -> None:
        """A backward of this process has ended, perhaps one of another model."""
        if not self._armed or self.model.wrapper is None:
            return
        self.backwards += 1
        if self.model.thread != threading.get_ident():
            # DDP's reducer may be busy in its own thread: to ask it would keep that one from going on.
            return
        if self._asks:
            unfinished = reducer.unfinished(self.model.wrapper.reducer)
            if unfinished:
                self._look(tensors_of(roots), unfinished)
            else:
                if self.missing:
                    self._false_alarm()
                self._armed = False
        elif self._is_plain and self._noted <= NOTED_FORWARDS:
            self._look(tensors_of(roots), "")

    def _look(self, roots: Sequence[Any], unfinished: str) -> None:
        """Inspect the graphs of the losses, as long as they are there."""
        self.reached = (self.reached or set()) | self._walk(roots)
        self.missing = self.all_missing(unfinished)
        used = self.reached
        behind = {**self._behind, **self._led_to()}
        self.outside = {name: found - used for name, found in behind.items() if found - used}

    def _led_to(self) -> Dict[str, Set[int]]:
        """Return the numbers of the parameters behind each output of the last forward that is still there."""
        alive = [(_called(key), reference()) for key, reference in self._outputs]
        return {name: self._walk([tensor]) for name, tensor in alive if tensor is not None}

    def all_missing(self, message: str) -> List[int]:
        """Return the numbers of the parameters without gradient: torch lists a hundred, the loss's graph all."""
        named = reducer.NO_GRADIENT.search(message)
        if named is None:
            return []
        numbers = [int(word) for word in named["indices"].split()]
        if named["more"] is None or self.reached is None or self.hides:
            return numbers
        rest = {n for n, p in enumerate(self.model.parameters) if p.requires_grad} - self.reached
        return sorted(rest | set(numbers))

    def reached_by(self, roots: Any) -> Set[int]:
        """Return the numbers of the parameters in the graphs of some losses, as far as no checkpoint hides them."""
        return self._walk(tensors_of(roots))

    def reached_by_outputs(self) -> Set[int]:
        """Return the same for the outputs of the last forward that are still there."""
        return set().union(*self._led_to().values())

    def _walk(self, tensors: Sequence[Any]) -> Set[int]:
        found = set()
        for node in graph.behind(each.grad_fn for each in tensors if each is not None and each.grad_fn is not None):
            variable = getattr(node, "variable", None)
            if variable is not None:
                found.add(self._numbers.get(id(variable), -1))
            elif "Checkpoint" in type(node).__name__:
                self.hides = True
        return found - {-1}

    def _false_alarm(self) -> None:
        self.missing, self.outside = [], {}
        self._alarms += 1
        self._asks = self._asks and self._alarms < _FALSE_ALARMS

    def end(self) -> None:
        """Observe nothing any more."""
        self._observed.forget(self)
        self._forget_hook()


def is_torchs(error: BaseException) -> bool:
    """Return whether this is one of DDP's errors, and nothing was added to it yet."""
    message = str(error) if isinstance(error, RuntimeError) else ""
    return (UNFINISHED in message or TWICE in message) and OURS not in message


def tensors_of(roots: Any) -> Sequence[Any]:
    """Return the tensors that a backward was called for."""
    if isinstance(roots, torch.Tensor):
        return [roots]
    with_graph = roots if isinstance(roots, (list, tuple)) else list(roots or ())
    return [each for each in with_graph if isinstance(each, torch.Tensor)]


def _kept(output: Any) -> Sequence[Output]:
    """Return the tensors that stand in an output itself, by their keys: no walk through what is nested in it."""
    if isinstance(output, torch.Tensor):
        return ((None, weakref.ref(output)),)
    if isinstance(output, dict):
        found = list(output.items())[:_OUTPUTS]
    elif isinstance(output, (list, tuple)):
        found = list(enumerate(output[:_OUTPUTS]))
    else:
        return ()
    return [(key, weakref.ref(value)) for key, value in found if isinstance(value, torch.Tensor)]


def _called(key: Any) -> str:
    return "the output" if key is None else f"output[{key!r}]"


def _compiles(wrapper: Any) -> bool:
    """Return whether torch.compile is at work in this process: hooks would change what it compiles."""
    compiled: Any = sys.modules.get("torch._dynamo.eval_frame")
    if compiled is None:
        return False
    backends = [getattr(compiled, "most_recent_backend", None), *getattr(compiled, "cached_backends", {}).values()]
    if any(backend is not None for backend in backends):
        return True
    frame: Any = sys._getframe(2)
    for _ in range(_CALLERS):
        if frame is None:
            break
        if frame.f_globals.get("__name__") == compiled.__name__:
            return True
        frame = frame.f_back
    return any(type(module).__name__ == "OptimizedModule" for _, module in internals.named_modules(wrapper))
