"""``Brain.no_sync`` puts ``require_backward_grad_sync`` back also after an exception (0.5.13 and later).

Unpatched SpeechBrain restores it behind a ``yield`` without ``finally``. A recipe that catches an out-of-memory error
in a micro-batch that does not synchronise then never synchronises again on that rank, and ranks drift apart in silence.

What this fixes: skipping a micro-batch on one rank, where that micro-batch is not the synchronising one. Nothing can
mend a rank that skips the *synchronising* micro-batch (before 1.0.0, where ``no_sync`` covers the backward only, that
is every one): the other ranks are in the middle of an all-reduce, which this rank's next one would answer with other
gradients. Catch errors only where ranks agree to skip, or let them end the job: torch elastic ends the other ranks.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, Callable, Iterator

from ddpfix.patching import temporary
from ddpfix.patching.site import PatchError, Site

_SYNC = "require_backward_grad_sync"


def restored(site: Site, module: ModuleType, owner: Any) -> None:
    """What the modules had before ``no_sync`` they have after it."""
    if not hasattr(vars(owner).get("no_sync"), "__wrapped__"):
        raise PatchError("Brain.no_sync is no context manager made from a generator")

    def make(original: Any) -> Callable[..., Any]:
        @contextmanager
        def no_sync(self: Any, use: Any = True) -> Iterator[None]:
            modules = [module for module in self.modules.values() if hasattr(module, _SYNC)]
            with ExitStack() as stack:
                for module in modules:
                    stack.enter_context(temporary.replaced(module, _SYNC, getattr(module, _SYNC)))
                stack.enter_context(original(self, use))
                yield

        return no_sync

    site.wrap_hot(owner, "no_sync", make)
