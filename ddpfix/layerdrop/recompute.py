"""Finds the call that a recomputation repeats (activation checkpointing runs a forward again during backward).

The repeated forward must get the decisions of the first one. Nothing may be drawn to mark calls, so a call is known by
what checkpointing keeps: first by the storages of its arguments (a detached copy shares them), then by the state of
the CPU generator at entry (checkpointing restores it, and reading it does not advance it), then as the only call that
still waits for its backward. Where none of the three decides, an error is better than a wrong gradient.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch

from ddpfix.layerdrop import training
from ddpfix.models.internals import TASK

# Calls that wait for their backward; more than this are forgotten, oldest first (a training loop that never calls
# backward must not leak).
_KEPT = 1024


class _WeakStorage:
    """A weak reference to a tensor's storage: as long as it is held, no other storage gets the same number.

    torch has such a class in its multiprocessing; torch.compile tries to compile that one, and fails.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self.cdata = storage._weak_ref()
        self._free = type(storage)._free_weak_ref

    def __del__(self) -> None:
        if hasattr(self, "cdata"):
            self._free(self.cdata)


@dataclass(eq=False)
class _Past:
    base: Optional[int]
    step: training.Step
    storages: Tuple[Tuple[Any, int], ...]
    generator: int
    method: str
    repeated: bool = False


def remember(
    module: Any,
    args: Tuple[Any, ...],
    kwargs: Dict[str, Any],
    base: Optional[int],
    step: training.Step,
    method: str = "",
) -> None:
    """Keep the decisions of a call until the backward of its step has begun and another forward follows."""
    kept = training.TRAINED.calls.get(module)
    if kept is None:
        kept = training.TRAINED.calls[module] = deque(maxlen=_KEPT)
    while kept and kept[0].step.reached and kept[0].step is not step:
        kept.popleft()
    kept.append(_Past(base, step, tuple(_storages(args, kwargs)), _generator(), method))


def repeated(
    module: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any], method: str = ""
) -> Optional[Tuple[Optional[int], training.Replica]]:
    """Return the stream of the call that this one repeats, and its model, or None; RuntimeError: it is not clear."""
    past_calls = training.TRAINED.calls.get(module)
    if not past_calls or (TASK is not None and TASK() == -1):
        return None
    kept = [past for past in past_calls if past.method == method]
    if not kept:
        return None
    if TASK is None and (training.current() is not None or not _matching(kept, args, kwargs)):
        return None
    past = _find(kept, args, kwargs)
    if past is None:
        raise RuntimeError(
            f"ddpfix: {type(module).__name__} is recomputed in backward, and {len(kept)} earlier calls could be the one"
            " that it repeats.\n"
            "Use checkpoint(..., preserve_rng_state=True), or checkpoint each layer instead of the whole stack.\n"
            "DDPFIX_LAYERDROP=off trains without LayerDrop."
        )
    past.repeated = True
    return past.base, past.step.replica


def _find(kept: List[_Past], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[_Past]:
    generator = _generator()
    rules: Tuple[Callable[[_Past], bool], ...] = (
        lambda past: past in same_storage,
        lambda past: past.generator == generator,
        lambda past: not past.repeated,
    )
    same_storage = _matching(kept, args, kwargs)
    for rule in rules:
        fitting = [past for past in kept if rule(past)]
        if len(fitting) == 1:
            return fitting[0]
        # A rule that fits no candidate is left out: the next one is applied to the same candidates.
        kept = fitting or kept
    return None


def _matching(kept: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> List[_Past]:
    mine = tuple((ref.cdata, offset) for ref, offset in _storages(args, kwargs))
    return [past for past in kept if mine and tuple((r.cdata, o) for r, o in past.storages) == mine]


def _storages(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Iterator[Tuple[Any, int]]:
    """(weak storage, offset) of every tensor argument. A weak storage's address is not used again while it is held."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, (tuple, list)):
            yield from _storages(tuple(value), {})
        elif isinstance(value, torch.Tensor):
            try:
                yield _WeakStorage(value), value.storage_offset()
            except (RuntimeError, NotImplementedError, AttributeError):
                # A tensor without a storage (sparse, a subclass): the other rules have to do.
                continue


def _generator() -> int:
    return hash(torch.default_generator.get_state().numpy().tobytes())
