"""``use_bf16`` and ``use_fp16`` do what they say, and loss scaling recovers from an overflow."""

from __future__ import annotations

import contextlib
import functools
import inspect
from types import ModuleType
from typing import Any, Callable, ContextManager, Dict, Tuple

import torch

from ddpfix import log
from ddpfix.patching import temporary
from ddpfix.patching.site import Site

from . import trainers

_HALF = (torch.float16, torch.bfloat16)


def train(site: Site, module: ModuleType, owner: Any) -> None:
    """An epoch in the precision that is set, in which gradients are unscaled before they are clipped.

    ``trainer`` before 1.3.4 swallows ``use_bf16`` and trains in full precision; before 1.0.11 also ``use_fp16``.

    The unpatched trainer clips the scaled gradients: with a scale of 65536 and a limit of 5, a step of SGD is 7.6e-5
    instead of 5. A norm that is not finite leads past ``scaler.update()``, so that the scale never shrinks and every
    later step is skipped, too.
    """
    is_swallowed = "use_bf16" not in inspect.signature(owner).parameters

    def built(wrapped: Any, trainer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        wrapped(*args, **kwargs)
        # The name that later releases give it.
        trainer.use_bf16 = bool(kwargs.get("use_bf16", False))
        if kwargs.get("use_fp16") and not hasattr(trainer, "use_fp16"):
            log.warning(
                "use_fp16 has no effect before FunASR 1.0.11: training runs in full precision. Use use_bf16 instead"
            )

    def epoch(wrapped: Any, trainer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        given = trainers.epoch_of(wrapped, trainer, args, kwargs)
        with contextlib.ExitStack() as stack:
            if is_swallowed and trainer.use_bf16:
                trainers.report(
                    trainer, "use_bf16: the forward pass runs in bfloat16. This release of FunASR ignores the setting"
                )
                stack.enter_context(_forward_in(given.model, _bfloat16(given.model)))
            if getattr(trainer, "use_fp16", False) and given.scaler is not None and given.scaler.is_enabled():
                trainers.report(trainer, "use_fp16: unscaling gradients before they are clipped")
                stack.enter_context(_clipped_unscaled(given.scaler, given.optim))
            return wrapped(*args, **kwargs)

    if is_swallowed:
        site.wrap(owner, "__init__", built)
    site.wrap(owner, trainers.method(owner, "train_epoch"), epoch)


def _bfloat16(model: Any) -> Callable[[], ContextManager[Any]]:
    device = next(model.parameters()).device
    return functools.partial(torch.autocast, device.type, dtype=torch.bfloat16)


def _forward_in(model: Any, precision: Callable[[], ContextManager[Any]]) -> Any:
    """While this context lasts, forwards of the model run in ``precision``, and nothing else does."""
    original = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with precision():
            return original(*args, **kwargs)

    return temporary.replaced(model, "forward", forward)


def autocast(site: Site, module: ModuleType, owner: Any) -> None:
    """``trainer_ds`` 1.0.28 to 1.2.6 has its autocast commented out: both settings train in full precision."""

    def make(original: Any) -> Callable[..., Any]:
        def maybe_autocast(dtype: Any = None, use_deepspeed: bool = False) -> Any:
            if use_deepspeed or dtype not in _HALF:
                return original(dtype=dtype, use_deepspeed=use_deepspeed)
            # Looked up at the call: on a CPU another one stands there.
            return vars(module)["autocast"](enabled=True, dtype=dtype)

        return maybe_autocast

    site.wrap_hot(module, "maybe_autocast", make)


def _clipped_unscaled(scaler: Any, optim: Any) -> ContextManager[None]:
    """The trainers look ``torch.nn.utils.clip_grad_norm_`` up when they call it: for the epoch, ours is there."""
    original = torch.nn.utils.clip_grad_norm_

    @functools.wraps(original)
    def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
        scaler.unscale_(optim)
        norm = original(*args, **kwargs)
        if not torch.isfinite(norm):
            # The trainer drops these gradients and takes no step.
            scaler.update()
        return norm

    return temporary.replaced(torch.nn.utils, "clip_grad_norm_", clip_grad_norm_)


def bf16_scaler(site: Site, module: ModuleType, owner: Any) -> None:
    """``trainer_ds`` 1.0.28 to 1.2.6 scales the loss for bfloat16, which has the range of full precision.

    The scaler itself stays on, as it is written into checkpoints; the steps get one that is off.
    """

    def make(original: Any) -> Callable[..., Any]:
        def backward_step(self: Any, model: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
            return original(self, model, _fitting(self, scaler), *args, **kwargs)

        return backward_step

    def make_update(original: Any) -> Callable[..., Any]:
        def update_step(self: Any, model: Any, optim: Any, scheduler: Any, scaler: Any, loss_dict: Any = None) -> Any:
            return original(self, model, optim, scheduler, _fitting(self, scaler), loss_dict=loss_dict)

        return update_step

    site.wrap_hot(owner, "backward_step", make)
    site.wrap_hot(owner, "update_step", make_update)


def _fitting(trainer: Any, scaler: Any) -> Any:
    only_bf16 = trainer.use_bf16 and not trainer.use_fp16
    return _off() if only_bf16 and scaler is not None and scaler.is_enabled() else scaler


@functools.lru_cache(maxsize=None)
def _off() -> Any:
    make = torch.amp.GradScaler if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler
    return make(enabled=False)
