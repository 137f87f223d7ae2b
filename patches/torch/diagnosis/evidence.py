"""What is known of the last step of a model under DDP, should DDP end with an error.

DDP raises at the next forward, when the graph of the step is gone. So the first steps note which modules run, and after
each backward the reducer is asked (one call in C++) whether it has finished: if not, the graph of the loss is still
there, and is looked at. A step that DDP finishes pays for the question only.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import torch
from torch.nn.modules import module as modules

from ddpfix.models import graph, internals

from ...common import lines
from ..internals import reducer
from ..pipeline import ddp
from ..unused.states import REDUCTION

# Forwards in which the modules that run are noted: an error mostly comes after the first one.
NOTED_FORWARDS = 2
# Steps that another backward has finished after all, after which nobody asks the reducer any more.
_FALSE_ALARMS = 2
# Frames that are looked at for a caller that compiles.
_CALLERS = 40
# Outputs that are kept in mind.
_OUTPUTS = 16
Output = Tuple[Any, "weakref.ref[Any]"]


class Evidence:
    """The evidence on one model.

    Attributes:
        wrapped_by: the modules that have wrapped it, the outermost first.
        steps: steps that were to be reduced so far; forwards before one backward are of one step.
        ran: the ids of the modules that ran in the last step; None where that was not noted.
        ran_before: the ids of those that ran in any step.
        forwards: forwards since the last backward.
        backwards: backwards since the last forward.
        missing: the numbers of the parameters without gradient, if a backward has left DDP unfinished.
        reached: the numbers of the parameters in the graphs of the losses of the step; None where that is not known.
        outside: names of outputs that no loss of the step has used -> the numbers of the parameters behind them alone.
        hides: whether a reentrant checkpoint hides a part of these graphs.
        first: how often each parameter got its gradient in the first step of a static graph.
        is_inside: whether backwards are made while the wrapped module's own forward runs.
        number: how many errors were explained: what ranks compare has a name of its own each time.
    """

    def __init__(self, model: ddp.Wrapped, wrapped_by: Tuple[str, ...]) -> None:
        self.model, self.wrapped_by = model, wrapped_by
        self.is_inside, self.number = False, 0
        wrapper = model.wrapper
        self._numbers = {id(parameter): number for number, parameter in enumerate(model.parameters)}
        self.is_static = bool(getattr(wrapper, "static_graph", False))
        self.is_plain = REDUCTION.of(model) is None and not wrapper.find_unused_parameters
        self.steps = self.forwards = self.backwards = 0
        self.ran: Optional[Set[int]] = None
        self.ran_before: Set[int] = set()
        self.missing: List[int] = []
        self.reached: Optional[Set[int]] = None
        self.outside: Dict[str, Set[int]] = {}
        self.hides = False
        self.first: Dict[int, int] = {}
        self._now: Optional[Set[int]] = None
        self._hook: Any = None
        self._node_hooks: List[Any] = []
        self._outputs: Sequence[Output] = ()
        # What an output leads to, while outputs may be dropped before the backward: noted in the first steps.
        self._behind: List[Tuple[str, Set[int]]] = []
        self._armed = False
        self._alarms = self._noted = 0
        self._asks = self.is_plain and reducer.can_ask(wrapper.reducer)

    @property
    def lines(self) -> lines.Lines:
        """The lines of the toolkit that has wrapped it."""
        return lines.of(self.wrapped_by)

    # Forwards.

    def before(self) -> None:
        """A forward with gradients begins."""
        wrapper = self.model.wrapper
        if self.is_plain and self._noted < NOTED_FORWARDS and wrapper.require_backward_grad_sync:
            self._note_modules()

    def after(self, output: Any) -> None:
        """A forward with gradients has ended."""
        if self._hook is not None:
            self._forget_hook()
        if not self.model.wrapper.require_backward_grad_sync:
            return
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
        if self.ran is not None:
            self.ran_before |= self.ran
        if self._noted <= NOTED_FORWARDS:
            self._behind = self._led_to(output) if self.is_plain else []
            if self.is_static and self._noted == 1:
                self._count_gradients()
        elif self._behind:
            self._behind = []

    def failed(self) -> None:
        """A forward has failed."""
        self._forget_hook()

    def _note_modules(self) -> None:
        if _compiles(self.model.wrapper):
            return
        noted: Set[int] = set()
        self._now = noted

        def note(module: Any, inputs: Any) -> None:
            noted.add(id(module))

        # For all modules at once, and only during this forward: nothing is put on the model itself.
        self._hook = modules.register_module_forward_pre_hook(note)

    def _forget_hook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _count_gradients(self) -> None:
        """Count the gradients of the first step, also of parameters that a checkpoint hides."""
        for number, node in enumerate(graph.accumulators(self.model.parameters)):
            self._node_hooks.append(node.register_prehook(self._counter(number)))

    def _counter(self, number: int) -> Any:
        def count(gradients: Any) -> None:
            self.first[number] = self.first.get(number, 0) + 1

        return count

    # Backwards.

    def backward_ended(self, roots: Any) -> None:
        """A backward of this process has ended, perhaps one of another model."""
        if not self._armed or self.model.wrapper is None:
            return
        self.backwards += 1
        if self.model.thread != threading.get_ident():
            # DDP's reducer may be busy in its own thread: to ask it would keep that one from going on.
            return
        if self._node_hooks and self.first:
            self.stop()
        if self._asks:
            unfinished = reducer.unfinished(self.model.wrapper.reducer)
            if unfinished:
                self._look(tensors_of(roots), unfinished)
            else:
                if self.missing:
                    self._false_alarm()
                self._armed = False
        elif self.is_plain and self._noted <= NOTED_FORWARDS:
            self._look(tensors_of(roots), "")

    def _look(self, roots: Sequence[Any], unfinished: str) -> None:
        """Inspect the graphs of the losses, as long as they are there."""
        self.reached = (self.reached or set()) | self._walk(roots)
        self.missing = self.all_missing(unfinished)
        alive = [(_called(key), reference()) for key, reference in self._outputs]
        behind = dict(self._behind)
        behind.update((name, self._walk([tensor])) for name, tensor in alive if tensor is not None)
        used = self.reached
        self.outside = {name: found - used for name, found in behind.items() if found - used}

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
        alive = [reference() for _, reference in self._outputs]
        return self._walk([tensor for tensor in alive if tensor is not None])

    def _walk(self, tensors: Sequence[Any]) -> Set[int]:
        found = set()
        for node in graph.behind(each.grad_fn for each in tensors if each is not None and each.grad_fn is not None):
            variable = getattr(node, "variable", None)
            if variable is not None:
                found.add(self._numbers.get(id(variable), -1))
            elif "Checkpoint" in type(node).__name__:
                self.hides = True
        return found - {-1}

    def _led_to(self, output: Any) -> List[Tuple[str, Set[int]]]:
        named = _named(output)
        # One output alone leads to all that there is.
        return [(name, self._walk([tensor])) for name, tensor in named] if len(named) > 1 else []

    def _false_alarm(self) -> None:
        self.missing, self.outside = [], {}
        self._alarms += 1
        self._asks = self._asks and self._alarms < _FALSE_ALARMS

    def stop(self) -> None:
        self._forget_hook()
        while self._node_hooks:
            self._node_hooks.pop().remove()


def tensors_of(roots: Any) -> Sequence[Any]:
    """Return the tensors that a backward was called for."""
    if isinstance(roots, torch.Tensor):
        return [roots]
    with_graph = roots if isinstance(roots, (list, tuple)) else list(roots or ())
    return [each for each in with_graph if isinstance(each, torch.Tensor)]


def _named(output: Any) -> List[Tuple[str, Any]]:
    """Return the tensors in a forward's output with names for a message, at most :data:`_OUTPUTS`."""
    top = [(_called(key), reference()) for key, reference in _kept(output)]
    return top or [
        (f"tensor {number} of the output", each) for number, each in enumerate(ddp.tensors(output)[:_OUTPUTS])
    ]


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
