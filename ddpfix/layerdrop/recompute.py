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

    def has(self, storages: List[Tuple[Any, int]]) -> bool:
        """Return whether its arguments have these storages; a weak one's address is not used again while it is held."""
        mine = [(weak.cdata, offset) for weak, offset in self.storages]
        return bool(mine) and mine == [(weak.cdata, offset) for weak, offset in storages]


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
    storages, generator, count = list(_storages(args, kwargs)), _generator(), len(kept)
    if not kept or (TASK is None and (training.current() is not None or not any(p.has(storages) for p in kept))):
        return None
    rules: Tuple[Callable[[_Past], bool], ...] = (
        lambda past: past.has(storages),
        lambda past: past.generator == generator,
        lambda past: not past.repeated,
    )
    for rule in rules:
        # A rule that fits no candidate is left out: the next one is applied to the same candidates.
        kept = [past for past in kept if rule(past)] or kept
        if len(kept) == 1 and rule(kept[0]):
            kept[0].repeated = True
            return kept[0].base, kept[0].step.replica
    raise RuntimeError(
        f"ddpfix: {type(module).__name__} is recomputed in backward, and {count} earlier calls could be the one"
        " that it repeats.\n"
        "Use checkpoint(..., preserve_rng_state=True), or checkpoint each layer instead of the whole stack.\n"
        "DDPFIX_LAYERDROP=off trains without LayerDrop."
    )


def _storages(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Iterator[Tuple[Any, int]]:
    """(weak storage, offset) of every tensor argument."""
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
