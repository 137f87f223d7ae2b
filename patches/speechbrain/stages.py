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

from ddpfix import log
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
    _carry(brain, before)
    return result


def _validated(func: Any = None, args: Any = None, *others: Any, **more: Any) -> Any:
    """Return the Brain whose ``on_stage_end`` is to be run for a validation."""
    stage = args[0] if args else (more.get("kwargs") or {}).get("stage")
    if getattr(func, "__name__", "") == "on_stage_end" and getattr(stage, "name", "") == "VALID":
        return getattr(func, "__self__", None)
    return None


def _carry(brain: Any, before: Dict[Key, Any]) -> None:
    main = distributed.get_rank() == 0
    # repr tells nan from nan no more than it tells 1 from True apart.
    changed = {key: now for key, now in _values(brain) if main and repr(before.get(key)) != repr(now)}
    sent = [changed]
    distributed.broadcast_object_list(sent, src=0)
    if main or not sent[0]:
        return
    holders = dict(_holders(brain))
    for (where, name), value in sent[0].items():
        if where in holders:
            _set(holders[where], name, value)
        else:
            log.debug(f"on_stage_end changed {where}.{name} on rank 0; this rank has no such object")


def _set(holder: Any, name: str, value: Any) -> None:
    held = holder if isinstance(holder, dict) else vars(holder)
    if isinstance(held.get(name), torch.Tensor):
        held[name].fill_(value)
    elif isinstance(holder, dict):
        holder[name] = value
    else:
        setattr(holder, name, value)


def _values(brain: Any) -> Iterator[Tuple[Key, Any]]:
    """Everything that is carried if it changes, as copies."""
    for where, holder in _holders(brain):
        items = holder if isinstance(holder, dict) else vars(holder)
        for name, value in items.items():
            if isinstance(holder, dict) and isinstance(value, torch.Tensor) and value.numel() == 1:
                value = value.item()
            if isinstance(name, str) and _is_plain(value):
                yield (where, name), copy.deepcopy(value)


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple) and len(value) <= _LONGEST:
        return all(type(part) in _PLAIN for part in value)
    return type(value) in _PLAIN


def _holders(brain: Any) -> Iterator[Tuple[str, Any]]:
    """By name, in the same order on all ranks: parameter groups (dicts), and objects with plain values."""
    hparams = getattr(brain, "hparams", None)
    roots = {"brain": brain, "hparams": hparams, "epoch_counter": _COUNTER.get()}
    seen: List[int] = []
    for root, holder in roots.items():
        if not hasattr(holder, "__dict__"):
            continue
        for where, candidate in [(root, holder), *((f"{root}.{name}", value) for name, value in _parts(holder))]:
            if id(candidate) not in seen:
                seen.append(id(candidate))
                yield from _of(where, candidate)


def _parts(holder: Any) -> Iterator[Tuple[str, Any]]:
    """Yield the values that an object holds, also in its dicts and lists (several optimizers)."""
    for name, value in list(vars(holder).items()):
        if type(value) is dict:
            yield from ((f"{name}.{key}", part) for key, part in value.items())
        elif type(value) in (list, tuple) and len(value) < 100:
            yield from ((f"{name}.{number}", part) for number, part in enumerate(value))
        else:
            yield name, value


def _of(where: str, candidate: Any) -> Iterator[Tuple[str, Any]]:
    if isinstance(candidate, torch.optim.Optimizer):
        yield from ((f"{where}.{number}", group) for number, group in enumerate(candidate.param_groups))
    elif hasattr(candidate, "__dict__") and not _is_other(candidate):
        yield where, candidate


def _is_other(candidate: Any) -> bool:
    """Models, data and code: nothing that a stage's end decides on."""
    kinds = (torch.nn.Module, torch.Tensor, torch.utils.data.DataLoader, torch.utils.data.Dataset, type, ModuleType)
    return isinstance(candidate, kinds) or hasattr(candidate, "__code__")
