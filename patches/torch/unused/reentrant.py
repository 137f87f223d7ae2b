"""Activation checkpointing with ``find_unused_parameters=True``.

The reentrant kind, torch's default, and the flag exclude each other: DDP does not find the parameters behind such a
checkpoint, takes them for unused, and raises "Expected to mark a variable ready only once" when their gradients come
(transformers issue 30113). In a model that has the flag the checkpoint is made non-reentrant, wherever it stands:
around a layer, or around a whole encoder in the user's own code.

Plain torch ends such a model's first backward. Gradients of a backward that begins after DDP has ended the reduction of
the step would stay on each rank, in silence: that backward raises.
"""

from __future__ import annotations

import functools
import types
import weakref
from types import ModuleType
from typing import Any, Callable, Dict, Hashable, Iterator, List, Sequence

import torch
from torch import nn

from ddpfix import log
from ddpfix.layerdrop import training
from ddpfix.models import graph
from ddpfix.patching.site import Site

from ..internals import reducer
from ..pipeline import ddp
from ..pipeline.checkpoints import Checkpoints

PLACE = "reentrant"
_PLAIN = (int, float, bool, str, type(None))


def kept(site: Site, module: ModuleType, owner: Any) -> None:
    """Run reentrant checkpoints as other ones where DDP has the flag, and they hide parameters from it."""
    checkpoints = site.keep(Checkpoints)
    checkpoints.run(site, owner, NonReentrant(module, checkpoints.own).run)
    site.at_undo(_forget)


class NonReentrant:
    """The checkpoints of models that have the flag."""

    def __init__(self, module: ModuleType, reentrant: Callable[..., Any]) -> None:
        self._module, self._reentrant = module, reentrant
        # By model and what is checkpointed: does the reentrant kind hide parameters that DDP looks for?
        self._hides: ddp.Slot[Dict[Hashable, bool]] = ddp.Slot()

    def run(self, function: Any, preserve: bool, args: Sequence[Any]) -> Any:
        """Run one; see :data:`..pipeline.checkpoints.Run`."""
        step = training.current()
        model = None if step is None or not step.replica.flagged else ddp.of_replica(step.replica)
        if model is None or not _may_send_gradients(function, args):
            return self._reentrant(function, preserve, *args)
        kind = _kind(function)
        known = self._hides.of(model) or self._hides.put(model, {})
        if not known.get(kind, True):
            return self._reentrant(function, preserve, *args)
        output = self._module.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve)
        if kind not in known:
            known[kind] = _hides(output, args, model)
            if known[kind]:
                log.once(_NON_REENTRANT)
                if GUARD.of(model) is None:
                    model.attach(PLACE, before=GUARD.put(model, Guard(model)).begin)
        return output


def _may_send_gradients(function: Any, args: Sequence[Any]) -> bool:
    """Return whether gradients of parameters may come from a checkpoint, as far as it is known before it has run.

    The reentrant kind trains nothing where none of its inputs needs a gradient; the other kind would.
    """
    if not (torch.is_grad_enabled() and any(isinstance(each, torch.Tensor) and each.requires_grad for each in args)):
        return False
    modules = [each for each in _held(function) if isinstance(each, nn.Module)]
    if not modules:
        return not str(getattr(function, "__module__", None)).startswith(("torch.", "None"))
    return any(parameter.requires_grad for module in modules for parameter in module.parameters())


def _kind(function: Any) -> Hashable:
    """Return a key of a checkpoint's function, the same in each step although it may be made anew in each."""
    function = _inner(function)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    known = [each for each in _held(function) if isinstance(each, (nn.Module, *_PLAIN))]
    held = tuple(id(each) if isinstance(each, nn.Module) else each for each in known)
    return id(function) if code is None else code, held


def _held(function: Any) -> Iterator[Any]:
    """Yield a function itself, the object that it is a method of, and what it has of the functions around it."""
    function = _inner(function)
    yield function
    yield getattr(function, "__self__", None)
    for cell in (function.__closure__ or ()) if isinstance(function, types.FunctionType) else ():
        try:
            yield cell.cell_contents
        except ValueError:
            # It has no value yet.
            continue


def _inner(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _hides(output: Any, args: Sequence[Any], model: ddp.Wrapped) -> bool:
    """Return whether a part of the graph that the reentrant kind would hide leads to a parameter of the model."""
    own = {id(parameter) for parameter in model.parameters}
    given = [each.grad_fn for each in args if isinstance(each, torch.Tensor) and each.grad_fn is not None]
    return any(id(leaf) in own for leaf in graph.leaves(ddp.tensors(output), given))


class Guard:
    """Has a second backward of a step raise, in one model."""

    def __init__(self, model: ddp.Wrapped) -> None:
        self._wrapper = weakref.ref(model.wrapper)
        nodes = graph.accumulators(model.parameters)
        self._hooks: List[Any] = [node.register_prehook(self._reached) for node in nodes]
        self._keeps_alive = nodes
        self._runs = False
        self.begin()

    def begin(self) -> None:
        """A forward with gradients enabled begins."""
        wrapper = self._wrapper()
        self._is_reduced = wrapper is not None and wrapper.require_backward_grad_sync
        self._has_run = False

    def _reached(self, gradients: Any) -> None:
        """A gradient comes to a parameter."""
        if self._runs:
            return
        wrapper = self._wrapper()
        if self._has_run and wrapper is not None and not reducer.unfinished(wrapper.reducer):
            raise RuntimeError(_SECOND.format(type(wrapper.module).__name__))
        self._runs = True
        reducer.at_end_of_backward(self._ended)

    def _ended(self) -> None:
        self._runs, self._has_run = False, self._is_reduced

    def end(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()


GUARD: ddp.Slot[Guard] = ddp.Slot()


def _forget() -> None:
    for model in ddp.known():
        guard = GUARD.clear(model)
        if guard is not None:
            model.detach(PLACE)
            guard.end()


_NON_REENTRANT = (
    "activation checkpointing runs with use_reentrant=False in this model, because reentrant checkpoints cannot train"
    " with find_unused_parameters=True"
)
_SECOND = (
    "ddpfix: a second backward of {} began after DDP had averaged this step, so its gradients would stay on this"
    " rank.\nPlain torch ends this program with 'Expected to mark a variable ready only once', because it combines"
    " reentrant checkpoints and find_unused_parameters=True.\n"
    "Call backward once, for the sum of the losses."
)
