"""Completes torch's "Expected to have finished reduction" with the names of the parameters and the fix."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Dict, List, Optional

from ddpfix.patching.site import Site

from . import ddp, reducer

ERROR = "Expected to have finished reduction in the prior iteration"
_SET_THE_FLAG = (
    "they are not used in every step, or an output that uses them is not part of the loss. The cure:\n"
    "    DistributedDataParallel(model, find_unused_parameters=True)      # or, without an edit: DDPFIX_UNUSED=find"
)
_ALREADY_SET = (
    "find_unused_parameters=True is set, so DDP found them behind an output that is not part of the loss. The cure:\n"
    "    return only what the loss needs from the wrapped model, or add 0.0 * output.sum() to the loss"
)


def reduction(site: Site, module: ModuleType, owner: Any) -> None:
    """Put the stage in: the error is raised at the beginning of DDP's next forward."""
    ddp.put(site, owner, Diagnosis())


class Diagnosis(ddp.Stage):
    place = "diagnosis"

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        model.attach(self.place, failed=functools.partial(_complete, model))


def _complete(model: ddp.Wrapped, error: BaseException) -> None:
    if isinstance(error, RuntimeError) and ERROR in str(error) and "ddpfix:" not in str(error):
        error.args = (f"{error}\n{explain(model, str(error))}",)


def explain(model: ddp.Wrapped, message: str) -> str:
    """The diagnosis: parameters without gradient on this rank, grouped by module, and the line that fixes it."""
    match = reducer.NO_GRADIENT.search(message)
    names = model.names
    if match is None:
        missing, where = [], ""
    else:
        missing = [names[int(i)] for i in match["indices"].split() if int(i) < len(names)]
        where = f" on rank {match['rank']}"
    fix = _ALREADY_SET if model.wrapper.find_unused_parameters else _SET_THE_FLAG
    more = model.finalizer.backwards.explain() if model.finalizer is not None else ""
    count = len(missing) or "some"
    return f"ddpfix: {count} parameters got no gradient{where}:{_listed(missing)}{more}\nddpfix: {fix}"


def _listed(names: List[str]) -> str:
    """The parameters, one line a layer, at most twenty lines."""
    groups = _grouped(names)
    lines = [f"\n    {module}: {_short(parts, 4)}" for module, parts in groups.items()]
    more = f"\n    and {len(lines) - 20} more modules" if len(lines) > 20 else ""
    return "".join(lines[:20]) + more or " torch names none"


def in_short(names: List[str]) -> str:
    """The modules of some parameters, at most four of them."""
    return _short(list(_grouped(names)), 4)


def _short(words: List[str], most: int) -> str:
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def _grouped(names: List[str]) -> Dict[str, List[str]]:
    """Names by the layer that holds them: the part up to the last number, or the module."""
    groups: Dict[str, List[str]] = {}
    for name in names:
        parts = name.split(".")
        numbers = [i for i, part in enumerate(parts) if part.isdigit()]
        cut = numbers[-1] + 1 if numbers and numbers[-1] + 1 < len(parts) else len(parts) - 1
        groups.setdefault(".".join(parts[:cut]) or "the model", []).append(".".join(parts[cut:]))
    return groups
