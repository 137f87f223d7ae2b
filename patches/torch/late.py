"""DDP without ``find_unused_parameters`` for any model: parameters that a backward left out are closed after it.

``auto`` does it wherever DDP has no flag and the user has not said ``find_unused_parameters=False`` in so many words;
``late`` instead of the flag everywhere. It costs a hook on each output, and nothing else where all is used.
"""

from __future__ import annotations

import inspect
import weakref
from types import ModuleType
from typing import Any, Callable, Dict, List, Tuple

import torch

from ddpfix import log, sync
from ddpfix.frames import skip_frames
from ddpfix.registry import Site

from . import consumers, diagnosis, unused, window
from .closing import Closer
from .window import Window

_CLOSERS: weakref.WeakKeyDictionary[Any, Tuple[Closer, Window]] = weakref.WeakKeyDictionary()


def close(site: Site, module: ModuleType, owner: Any) -> None:
    """Put on DDP, and on what uses gradients: clipping, the gradient scaler, every optimizer's step."""
    if module.__name__.endswith("optimizer"):
        consumers.steps(site, module)
    elif inspect.isclass(owner) and hasattr(owner, "unscale_"):
        consumers.functions(site, owner, ["unscale_"])
    elif not inspect.isclass(owner):
        consumers.functions(site, module, ["clip_grad_norm_", "clip_grad_value_"])
    else:
        consumers.collectives(site)
        _on_ddp(site, owner)


def _on_ddp(site: Site, owner: Any) -> None:
    everywhere = site.settings["unused"] == "late"

    def built(wrapped: Any, wrapper: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        arguments = inspect.signature(wrapped).bind(*args, **kwargs).arguments
        refused = unused.chosen(arguments) is False and not everywhere
        wrapped(*args, **kwargs)
        if not refused and not wrapper.find_unused_parameters:
            _arm(wrapper, everywhere)

    site.once(owner, "__init__", built)
    site.often(owner, "forward", _forward)
    skip_frames(vars(owner)["forward"])
    unused.OTHERWISE.append(_possible)
    site.at_undo(lambda: unused.OTHERWISE.remove(_possible))
    site.at_undo(_end)


def _end() -> None:
    for closer, _ in list(_CLOSERS.values()):
        closer.end()
    _CLOSERS.clear()


def _arm(wrapper: Any, at_once: bool) -> None:
    try:
        reason = impossible(wrapper)
        seen = None if reason else window.of(wrapper)
    except Exception as error:
        reason, seen = f"{error!r}", None
    if reason:
        log.debug(f"unused parameters of a {type(wrapper.module).__name__} are not closed after backward: {reason}")
        return
    assert seen is not None
    _CLOSERS[wrapper] = (Closer(wrapper, seen.parameters, seen.shared, _Told(wrapper), at_once), seen)
    replica = sync.replica_of(wrapper)
    if replica is not None:
        # Checkpointing of either kind may stay.
        replica.flagged = False


def _possible(arguments: Dict[str, Any]) -> bool:
    """The same as far as the arguments of the constructor tell it."""
    return not any(arguments.get(name) for name in ("static_graph", "mixed_precision", *_DELAYED))


_DELAYED = ("delay_all_reduce_named_params", "param_to_hook_all_reduce")


def impossible(wrapper: Any) -> str:
    """Why gradients would not be right ("": they are)."""
    if getattr(wrapper, "static_graph", False):
        return "static_graph=True counts on the same parameters in each step"
    if getattr(wrapper, "mixed_precision", None) is not None:
        return "DDP's own mixed precision reports gradients in its own way"
    if getattr(wrapper, "_use_python_reducer", False):
        return "compiled autograd reduces without a reducer"
    if getattr(wrapper, "_delay_all_reduce_params", None) or getattr(wrapper, "_delay_all_reduce_all_params", False):
        return "some of its parameters are reduced by themselves"
    return ""


class _Told:
    """One line for a model that would have failed."""

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = weakref.ref(wrapper)
        self._done = False

    def __call__(self, numbers: List[int]) -> None:
        wrapper = self._wrapper()
        if self._done or wrapper is None:
            return
        self._done = True
        names = diagnosis.names_of(wrapper)
        shown = diagnosis.in_short([names[number] for number in numbers if number < len(names)])
        log.info(
            f"{len(numbers)} parameters of {type(wrapper.module).__name__} got no gradient ({shown}), which stock ends"
            " with 'Expected to have finished reduction'. Here DDP's reduction is closed after each backward"
            " (DDPFIX_UNUSED=find sets the flag instead, off does neither)"
        )


def _forward(stock: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        found = _CLOSERS.get(self)
        if found is None or not torch.is_grad_enabled():
            return stock(self, *inputs, **kwargs)
        closer, seen = found
        reduced = self.require_backward_grad_sync
        if reduced:
            closer.forget()
        elif closer.closed:
            closer.closed.clear()
        output = stock(self, *inputs, **kwargs)
        seen.forward_ended()
        if reduced:
            closer.watch(_tensors(output), seen.unused)
        return output

    return forward


def _tensors(output: Any) -> List[Any]:
    from torch.nn.parallel.distributed import _find_tensors

    return list(_find_tensors(output))
