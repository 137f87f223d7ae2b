"""With mixed precision, every micro-batch of a window counts (0.5.12, 0.5.13).

There ``fit_batch`` empties the gradients before each micro-batch with ``auto_mix_prec``, so the step is taken on the
last one alone, divided by the accumulation factor. 0.5.14 mended it: gradients are emptied when a window begins.

Reached through ``Brain.fit_batch``: a recipe with a ``fit_batch`` of its own empties what it wants to.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Callable

from ddpfix.patching import checks, temporary
from ddpfix.patching.site import Site


def windows(site: Site, module: ModuleType, owner: Any) -> None:
    """Within a window, ``fit_batch`` under mixed precision does not begin with ``zero_grad``."""
    checks.needs_names(owner, "fit_batch", "auto_mix_prec", "grad_accumulation_factor", "step", "zero_grad")

    def make(original: Any) -> Callable[..., Any]:
        def fit_batch(self: Any, batch: Any) -> Any:
            # The loop counts from 1. Leftovers of the epoch before are dropped, as in later releases.
            first = (self.step - 1) % self.grad_accumulation_factor == 0
            if first or not self.auto_mix_prec:
                return original(self, batch)
            with temporary.replaced(self.optimizer, "zero_grad", _but_the_first(self.optimizer.zero_grad)):
                return original(self, batch)

        return fit_batch

    site.wrap_hot(owner, "fit_batch", make)


def _but_the_first(zero_grad: Any) -> Callable[..., Any]:
    """Nothing at the first call; what a recipe's own hook calls later in the same batch is done."""
    calls = 0

    @functools.wraps(zero_grad)
    def later(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return zero_grad(*args, **kwargs) if calls > 1 else None

    return later
