"""``masked_spec_embed`` of wav2vec2-like models, which SpeechBrain's wrappers never use.

They set ``apply_spec_augment=False``, and the parameter that would stand for masked frames is there all the same. So
DDP fails in the second step even without LayerDrop (speechbrain issue 2340, pull request 713).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Iterator, Tuple

import torch

from ddpfix import log
from ddpfix.models import wrap_hooks
from ddpfix.patching.site import Site

NAME = "masked_spec_embed"


def needs_flag(site: Site) -> None:
    """Have DDP look for unused parameters in a model that holds one."""
    wrap_hooks.needs_flag(site, _reason)


def frozen(site: Site, module: ModuleType, owner: Any) -> None:
    """Freeze it before DDP wraps the model, where the model's own code leaves it out: for training without the flag."""
    wrap_hooks.before_wrap(site, _freeze, waiting=True)


def _unused(model: Any) -> Iterator[Tuple[str, Any]]:
    """(name, module) of every module whose ``masked_spec_embed`` is trainable and switched off by the configuration."""
    for name, module in model.named_modules():
        parameter = getattr(module, NAME, None)
        if not isinstance(parameter, torch.nn.Parameter) or not parameter.requires_grad:
            continue
        if getattr(getattr(module, "config", None), "apply_spec_augment", True) is False:
            yield name, module


def _reason(model: Any) -> str:
    names = [f"{name}.{NAME}".lstrip(".") for name, _ in _unused(model)]
    return f"{', '.join(names)} is never used with apply_spec_augment=False" if names else ""


def _freeze(model: Any) -> None:
    for name, module in _unused(model):
        if leaves_out(module):
            getattr(module, NAME).requires_grad_(False)
            log.info(f"froze {name}.{NAME}: no step uses it with apply_spec_augment=False".replace(" .", " "))


def leaves_out(module: Any) -> bool:
    """Return whether the model's own masking does nothing as configured; found by running it on frames of zeros."""
    mask = getattr(module, "_mask_hidden_states", None)
    if mask is None:
        return False
    frames = torch.zeros(1, 2, getattr(module, NAME).numel(), device=getattr(module, NAME).device)
    try:
        result = mask(frames, mask_time_indices=torch.ones(1, 2, dtype=torch.bool, device=frames.device))
    except Exception:
        return False
    return result is frames and not result.requires_grad and not bool(result.any())
