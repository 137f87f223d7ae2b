"""Completes torch's "Expected to have finished reduction" with the names of the parameters and the cure."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any, Callable, Dict, List

from ddpfix.frames import skip_frames
from ddpfix.registry import Site

ERROR = "Expected to have finished reduction in the prior iteration"
_SET_THE_FLAG = (
    "they are not used in every step, or an output that uses them is not part of the loss. The cure:\n"
    "    DistributedDataParallel(model, find_unused_parameters=True)      # or, without an edit: DDPFIX_UNUSED=find"
)
_ALREADY_SET = (
    "find_unused_parameters=True is set, so DDP found them behind an output that is not part of the loss. The cure:\n"
    "    return only what the loss needs from the wrapped model, or add 0.0 * output.sum() to the loss"
)
_INDICES = re.compile(r"did not receive grad for rank (\d+): ([\d ]+)")


def reduction(site: Site, module: ModuleType, owner: Any) -> None:
    """Catch the error where DDP raises it: at the beginning of the next forward."""
    site.often(owner, "forward", _forward)
    skip_frames(vars(owner)["forward"])


def _forward(stock: Any) -> Callable[..., Any]:
    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        try:
            return stock(self, *inputs, **kwargs)
        except RuntimeError as error:
            if ERROR in str(error) and "ddpfix:" not in str(error):
                error.args = (f"{error}\n{explain(self, str(error))}",)
            raise

    return forward


def explain(wrapper: Any, message: str) -> str:
    """The diagnosis: parameters without gradient on this rank, grouped by module, and the line that cures it."""
    found = _INDICES.search(message)
    names = names_of(wrapper)
    if found is None:
        missing, where = [], ""
    else:
        missing = [names[int(i)] for i in found.group(2).split() if int(i) < len(names)]
        where = f" on rank {found.group(1)}"
    cure = _ALREADY_SET if wrapper.find_unused_parameters else _SET_THE_FLAG
    return f"ddpfix: {len(missing) or 'some'} parameters got no gradient{where}:{_listed(missing)}\nddpfix: {cure}"


def _listed(names: List[str]) -> str:
    """The parameters, a line a layer, and no more lines than can be read."""
    groups = _grouped(names)
    lines = [f"\n    {module}: {_short(parts, 4)}" for module, parts in groups.items()]
    more = f"\n    and {len(lines) - 20} more modules" if len(lines) > 20 else ""
    return "".join(lines[:20]) + more or " torch names none"


def in_short(names: List[str]) -> str:
    """The modules of some parameters, and no more than can be read."""
    return _short(list(_grouped(names)), 4)


def _short(words: List[str], most: int) -> str:
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def names_of(wrapper: Any) -> List[str]:
    """Parameter names in the order of DDP's own indices."""
    ignored = getattr(wrapper, "parameters_to_ignore", ())
    return [name for name, p in wrapper.module.named_parameters() if p.requires_grad and name not in ignored]


def _grouped(names: List[str]) -> Dict[str, List[str]]:
    """Names by the layer that holds them: the part up to the last number, or the module."""
    groups: Dict[str, List[str]] = {}
    for name in names:
        parts = name.split(".")
        numbers = [i for i, part in enumerate(parts) if part.isdigit()]
        cut = numbers[-1] + 1 if numbers and numbers[-1] + 1 < len(parts) else len(parts) - 1
        groups.setdefault(".".join(parts[:cut]) or "the model", []).append(".".join(parts[cut:]))
    return groups
