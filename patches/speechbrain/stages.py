"""What ``on_stage_end`` decides after validation holds on every rank (before 0.5.16).

SpeechBrain runs ``on_stage_end(VALID)`` on the main process only. Recipes anneal the learning rate and stop early in
it: rank 0 then steps with another learning rate than the others, the weights drift apart in silence, and an early stop
leaves the other ranks waiting for ever. 0.5.16 runs it on every rank, and guards everything else that recipes do there.

Those recipes were written for the main process: they write files, samples and checkpoints. So it stays there, runs
once, on rank 0's numbers, and what it *changed* is carried to the other ranks afterwards, once a stage: the settings
of the optimizers' parameter groups, and plain values (numbers, texts, and lists of them) in the Brain, its ``hparams``,
and the objects that both hold: epoch counters, annealers, schedulers. So every rank has the very values of rank 0,
whatever a metric comes to elsewhere.

Not carried: weights, tensors, an optimizer that is replaced. No recipe of 0.5.13 or 0.5.15 does that in this place.
"""

from __future__ import annotations

import copy
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch
from torch import distributed

from ddpfix.patching import temporary
from ddpfix.patching.site import Site

from . import brains

# What was handed to fit as the epoch counter: recipes stop early through it.
_COUNTER: ContextVar[Optional[Any]] = ContextVar("ddpfix_speechbrain_counter", default=None)
# Longer lists are data, not settings.
_LONGEST = 10000
_PLAIN = (bool, int, float, str, type(None))
# (holder, name): ("optimizer.0", "lr").
Key = Tuple[str, str]


def every_rank(site: Site, module: ModuleType, owner: Any) -> None:
    """Put on ``run_on_main``, through which every release calls ``on_stage_end``."""
    site.wrap(module, "run_on_main", _run_on_main)


def fit(site: Site, module: ModuleType, owner: Any) -> None:
    """Put on ``Brain.fit``, which is given the epoch counter."""
    site.wrap(owner, "fit", _fit)


def _fit(wrapped: Any, brain: Any, args: Any, kwargs: Any) -> Any:
    with temporary.assigned(_COUNTER, args[0] if args else kwargs.get("epoch_counter")):
        return wrapped(*args, **kwargs)


def _run_on_main(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    brain = _validated(*args, **kwargs)
    if brain is None or not brains.is_distributed(brain):
        return wrapped(*args, **kwargs)
    before = dict(_values(brain))
    result = wrapped(*args, **kwargs)
    main = distributed.get_rank() == 0
    # repr tells nan from nan no more than it tells 1 from True apart.
    changed = {key: now for key, now in _values(brain) if main and repr(before.get(key)) != repr(now)}
    sent = [changed]
    distributed.broadcast_object_list(sent, src=0)
    tables = {where: table for where, table, _ in _tables(brain)} if not main and sent[0] else {}
    for (where, name), value in sent[0].items():
        if where not in tables:
            continue
        if isinstance(tables[where].get(name), torch.Tensor):
            tables[where][name].fill_(value)
        else:
            tables[where][name] = value
    return result


def _validated(func: Any = None, args: Any = None, *others: Any, **more: Any) -> Any:
    """Return the Brain whose ``on_stage_end`` is to be run for a validation."""
    stage = args[0] if args else (more.get("kwargs") or {}).get("stage")
    if getattr(func, "__name__", "") == "on_stage_end" and getattr(stage, "name", "") == "VALID":
        return getattr(func, "__self__", None)
    return None


def _values(brain: Any) -> Iterator[Tuple[Key, Any]]:
    """Everything that is carried if it changes, as copies."""
    for where, table, is_group in _tables(brain):
        for name, value in table.items():
            if is_group and isinstance(value, torch.Tensor) and value.numel() == 1:
                value = value.item()
            parts = value if type(value) in (list, tuple) and len(value) <= _LONGEST else [value]
            if isinstance(name, str) and all(type(part) in _PLAIN for part in parts):
                yield (where, name), copy.deepcopy(value)


def _tables(brain: Any) -> Iterator[Tuple[str, Dict[str, Any], bool]]:
    """(name, settings, whether they are an optimizer's), in the same order on all ranks.

    Of the Brain, its hparams, the epoch counter, and what these hold, also in dicts and lists (several optimizers).
    Models, data and code are left out: nothing that a stage's end decides on.
    """
    others = (torch.nn.Module, torch.Tensor, torch.utils.data.DataLoader, torch.utils.data.Dataset, type, ModuleType)
    seen: List[int] = []
    roots = {"brain": brain, "hparams": getattr(brain, "hparams", None), "epoch_counter": _COUNTER.get()}
    for root, holder in roots.items():
        parts = [(root, holder)]
        for name, value in list(getattr(holder, "__dict__", {}).items()):
            if type(value) is dict:
                parts += [(f"{root}.{name}.{key}", part) for key, part in value.items()]
            elif type(value) in (list, tuple) and len(value) < 100:
                parts += [(f"{root}.{name}.{number}", part) for number, part in enumerate(value)]
            else:
                parts.append((f"{root}.{name}", value))
        for where, part in parts:
            if id(part) in seen or not hasattr(part, "__dict__"):
                continue
            seen.append(id(part))
            if isinstance(part, torch.optim.Optimizer):
                yield from ((f"{where}.{number}", group, True) for number, group in enumerate(part.param_groups))
            elif not isinstance(part, others) and not hasattr(part, "__code__"):
                yield where, vars(part), False
