"""Parameters of a wrapped model that DDP does not know: a layer replaced, added or unfrozen after wrapping.

DDP takes its list of parameters at construction. A parameter that is trained but not in that list is not averaged;
plain torch raises an error only if a parameter of the list gets no gradient.
"""

from __future__ import annotations

from ddpfix.exchange import lowest_rank
from ddpfix.models import internals
from ddpfix.rules.finding import in_short

from ..internals.wrapper import inner
from ..pipeline import ddp


def raise_if_any(model: ddp.Wrapped) -> None:
    """Raise if DDP does not know a trained parameter; plain torch would end this reduction with an error."""
    text = _described(model)
    if text:
        raise RuntimeError(f"ddpfix: {text}.\nWrap {_FIX}")


def warn_if_any(model: ddp.Wrapped) -> None:
    """Say so if DDP does not know a trained parameter, after a reduction that plain torch would complete too."""
    text = _described(model)
    if text:
        text += f".\nIf all ranks should train them alike, wrap {_FIX}"
        lowest_rank.report(f"unregistered/{model.number}", text, warns=True)


_FIX = "the model after its layers are chosen and unfrozen, or wrap it again."


def _described(model: ddp.Wrapped) -> str:
    """Name trained parameters with a gradient that DDP does not average, and was not told to ignore; "" for none."""
    known, named = {id(each) for each in model.parameters}, internals.named_parameters(inner(model.wrapper))
    ignored = getattr(model.wrapper, "parameters_to_ignore", ())
    unknown = [(name, each) for name, each in named.items() if id(each) not in known and name not in ignored]
    names = [name for name, each in unknown if each.requires_grad and each.grad is not None]
    if not names:
        return ""
    here = {id(each) for each in named.values()}
    replaced = [name for name, each in zip(model.names, model.parameters) if id(each) not in here]
    count = "1 parameter" if len(names) == 1 else f"{len(names)} parameters"
    text = (
        f"DDP does not average {count} of {type(model.wrapper.module).__name__} ({in_short(names)}), added, replaced or"
        " unfrozen after wrapping"
    )
    return text + (f".\nDDP still waits for the ones they replaced ({in_short(replaced)})" if replaced else "")
