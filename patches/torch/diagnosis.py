"""Completes torch's "Expected to have finished reduction" with the names of the parameters and the fix."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Optional

from ddpfix.patching.site import Site
from ddpfix.ranks import parameter_names

from . import ddp, reducer

# The modules of some parameters, for messages of other stages.
in_short = parameter_names.in_short
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
    listed = parameter_names.listed(missing) or " torch names none"
    return f"ddpfix: {count} parameters got no gradient{where}:{listed}{more}\nddpfix: {fix}"
