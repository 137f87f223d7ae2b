"""Parameters of a wrapped model that DDP does not know: a layer replaced, added or set free after wrapping.

DDP takes its list of parameters at construction. What is trained beside that list is not averaged, and in plain torch
the job ends with an error only if a parameter of the list is missed.
"""

from __future__ import annotations

from typing import List

from ddpfix import log

from . import ddp, diagnosis


def found(model: ddp.Wrapped) -> List[str]:
    """The names of trainable parameters with a gradient which DDP does not reduce."""
    wrapper = model.wrapper
    known = {id(parameter) for parameter in model.parameters}
    ignored = getattr(wrapper, "parameters_to_ignore", ())
    return [
        name
        for name, parameter in wrapper.module.named_parameters()
        if parameter.requires_grad and parameter.grad is not None and id(parameter) not in known and name not in ignored
    ]


def refuse(model: ddp.Wrapped) -> None:
    """Called before a reduction is finalized that plain torch would end with an error.

    Raises:
        RuntimeError: a parameter is trained that DDP does not know.
    """
    names = found(model)
    if names:
        raise RuntimeError(f"ddpfix: {_described(model, names)}. {_CURE}")


def tell(model: ddp.Wrapped) -> None:
    """Called after the first reduction, which plain torch has come through."""
    names = found(model)
    if names:
        log.warning(f"{_described(model, names)}: ranks drift apart. {_CURE}")


_CURE = "Wrap the model after its layers are chosen and set free, or wrap it again"


def _described(model: ddp.Wrapped, names: List[str]) -> str:
    here = {id(parameter) for parameter in model.wrapper.module.parameters()}
    gone = [name for name, parameter in zip(model.names, model.parameters) if id(parameter) not in here]
    text = (
        f"{diagnosis.in_short(names)} of {type(model.wrapper.module).__name__} was replaced, added or set free after"
        f" DistributedDataParallel was built, which does not average it ({len(names)} parameters)"
    )
    return text + (f"; DDP still waits for what it has replaced ({diagnosis.in_short(gone)})" if gone else "")
