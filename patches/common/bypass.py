"""Calls of a module past its DistributedDataParallel wrapper (``model.module(x)``, ``self.hparams.X(x)``).

DDP prepares its reduction in its own forward only. Gradients of a module that was called directly stay on their rank,
and the replicas part in silence (speechbrain issue 930, accelerate issue 3285). A call that is routed goes through the
wrapper, as if the program had called that; so it trains what the program with that edit trains.

A rank that alone goes through the wrapper might wait for the others in a collective (of buffers, say). So the first
call from each place of the program waits until all ranks have come to it, and where they do not, calls from there stay
as they are on all ranks.
"""

from __future__ import annotations

import hashlib
import sys
import weakref
from types import CodeType, FrameType
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from ddpfix import log
from ddpfix.exchange import roll_call
from ddpfix.exchange.keys import default_store
from ddpfix.groups.internals import name_of
from ddpfix.models import internals
from ddpfix.models.graph import tensors_in
from ddpfix.models.identity import ByIdentity
from ddpfix.patching.site import Site

# Seconds for which a rank waits at the first call from a place.
_LIMIT = 30.0
# Places of one module that are routed; a program that calls it from more of them makes its code as it runs.
_PLACES = 64
_DDP = "torch.nn.parallel."
_ENABLED = torch.is_grad_enabled
_BY_INSTANCE = hasattr(torch.nn.Module, "_compiled_call_impl")
# Where a call comes from: the code and the instruction of each frame.
Place = Tuple[Tuple[int, int], ...]


class Routes:
    """The modules whose calls are routed."""

    def __init__(self) -> None:
        self.by_module: ByIdentity[Route] = ByIdentity()

    def looked_up(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a wrapper of ``__call__`` of a class of modules."""
        known = self.by_module.found.get

        def __call__(self: Any, *inputs: Any, **kwargs: Any) -> Any:
            own = known(id(self))
            return original(self, *inputs, **kwargs) if own is None else own(*inputs, **kwargs)

        return __call__


def route(site: Site, wrapper: Any, ranks: Sequence[int], told: Callable[[str], str]) -> None:
    """Have the training forwards of a wrapped module go through its wrapper, wherever they are called.

    Args:
        wrapper: the model under DDP; called on all ranks in the same order.
        told: makes the message from a place in the program ("train.py:33").
    """
    module = wrapper.module
    routes = site.keep(Routes)
    if module in routes.by_module or not _is_plain(wrapper, module) or default_store() is None:
        return
    name = roll_call.name_of_next(name_of(wrapper.process_group, ranks), "past")
    routes.by_module[module] = own = Route(wrapper, ranks, name, told)
    if _BY_INSTANCE:
        module._compiled_call_impl = own
        site.at_undo(lambda: _forget(weakref.ref(module)))
    elif "__call__" not in vars(type(module)):
        # These releases look for nothing on the instance, so that the class has to.
        site.wrap_hot(type(module), "__call__", routes.looked_up)


def _is_plain(wrapper: Any, module: Any) -> bool:
    """Return whether nothing but DDP stands between the two: no class of the user's, no compiled or scripted module."""
    if type(wrapper) is not torch.nn.parallel.DistributedDataParallel or isinstance(module, torch.jit.ScriptModule):
        return False
    return getattr(module, "_compiled_call_impl", None) is None and not hasattr(module, "_orig_mod")


def _forget(reference: Any) -> None:
    module = reference()
    if module is not None and isinstance(vars(module).get("_compiled_call_impl"), Route):
        del module._compiled_call_impl


class Route:
    """Takes the calls of one wrapped module: arguments as of :func:`route`, and a name that all ranks share."""

    def __init__(self, wrapper: Any, ranks: Sequence[int], name: str, told: Callable[[str], str]) -> None:
        self._wrapper, self._module = weakref.ref(wrapper), weakref.ref(wrapper.module)
        self._ranks, self._name, self._told = ranks, name, told
        # Whether a forward of the wrapper runs, and whether one waits for its backward: that reduces all gradients.
        self._inside, self._waits = False, [False]
        # Whether the wrapper is called from here, and was for the forward that waits.
        self._routing, self._routed = False, False
        # With the code of each place, so that nothing else gets its id.
        self._places: Dict[Place, Tuple[bool, List[CodeType]]] = {}

    def __reduce__(self) -> Any:
        """Return nothing to a module that is saved or copied with all of its attributes."""
        return type(None), ()

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        module: Any = self._module()
        if self._inside or not _ENABLED() or not module.training:
            return module._call_impl(*inputs, **kwargs)
        frame = _caller()
        if is_ddp(frame):
            return self._within(module, inputs, kwargs)
        wrapper = self._wrapper()
        reduced = self._waits[0] and not self._routed
        if wrapper is None or reduced or elsewhere() or not self._agreed(frame):
            return module._call_impl(*inputs, **kwargs)
        # Buffers come from the first rank once a step: ranks may make several calls, and not equally many.
        if self._waits[0]:
            # DDP sets it anew at the end of each forward.
            wrapper.require_forward_param_sync = False
        self._routing = True
        try:
            return wrapper(*inputs, **kwargs)
        finally:
            self._routing = False

    def _within(self, module: Any, inputs: Any, kwargs: Any) -> Any:
        self._inside, self._routed = True, self._routing
        try:
            output = module._call_impl(*inputs, **kwargs)
        finally:
            self._inside = False
        self._waits = waits = [False]
        for tensor in tensors_in(output):
            if tensor.grad_fn is not None:
                waits[0] = True
                # On the node: a hook on the tensor itself is saved with it.
                tensor.grad_fn.register_hook(lambda *gradients: waits.__setitem__(0, False))
        return output

    def _agreed(self, frame: FrameType) -> bool:
        place = _place(frame)
        found = self._places.get(place)
        if found is None:
            agreed = len(self._places) < _PLACES and self._ask(frame)
            found = self._places[place] = agreed, [each.f_code for each in _frames(frame)]
        return found[0]

    def _ask(self, frame: FrameType) -> bool:
        described = _described(frame)
        digest = hashlib.sha1(described.encode()).hexdigest()[:12]
        agreed = roll_call.all_come(f"{self._name}/{digest}", self._ranks, roll_call.limit_of(None, _LIMIT))
        where = line(frame)
        if agreed:
            log.once(self._told(where))
        else:
            log.on_every_rank(
                f"{where} calls a {type(self._module()).__name__} past its DistributedDataParallel wrapper, and not on"
                " every rank. DDP does not average the gradients of this call"
            )
        return agreed


def _caller() -> FrameType:
    """Return the frame that calls the module."""
    # Of this function, of Route.__call__, and of torch's or our own __call__ below.
    return program(sys._getframe(3))


def program(frame: FrameType) -> FrameType:
    """Return the first frame from here on that is none of ``torch.nn.Module``."""
    while frame.f_globals.get("__name__") == "torch.nn.modules.module" and frame.f_back is not None:
        frame = frame.f_back
    return frame


def is_ddp(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(_DDP)


def elsewhere() -> bool:
    """Return whether this is no forward of a training step: a checkpoint recomputes, or a tracer runs."""
    return internals.in_backward() or bool(torch.jit.is_tracing())


def _frames(frame: Optional[FrameType]) -> List[FrameType]:
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def _place(frame: FrameType) -> Place:
    return tuple((id(each.f_code), each.f_lasti) for each in _frames(frame))


def _described(frame: FrameType) -> str:
    """Return the same on all ranks, whatever the folders are called there."""
    return " ".join(f"{each.f_code.co_name}:{each.f_lineno}:{each.f_lasti}" for each in _frames(frame))


def line(frame: FrameType) -> str:
    """Return a place of the program, as its file and line; torch's own functions (checkpoint) are called by it."""
    while frame.f_globals.get("__name__", "").startswith("torch.") and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
