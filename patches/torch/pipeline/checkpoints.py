"""The one wrapper of torch's reentrant checkpoints, ``CheckpointFunction.apply``.

It counts them, because what such a checkpoint hides from the graph is not seen by who asks the engine, and has one
subscriber that runs them otherwise. ``checkpoint`` itself stays what torch.compile knows.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional, Sequence

from ddpfix.patching import attribution, tracebacks
from ddpfix.patching.attribution import looks_like
from ddpfix.patching.site import Site

from ..internals import autograd
from .order import Shared

# Runs one: with what is checkpointed, whether its random state is preserved, and the arguments.
Run = Callable[[Any, bool, Sequence[Any]], Any]


class Checkpoints:
    """The reentrant checkpoints of one activation."""

    def __init__(self) -> None:
        self._shared: Shared[Optional[Run]] = Shared("torch.checkpoints", ("run", "count"))
        self._inherited: Any = None

    @attribution.uncounted
    def own(self, *args: Any) -> Any:
        """Run one as torch does, while the wrapper is on."""
        return self._inherited(*args)

    def count(self, site: Site, owner: Any) -> None:
        """Count them (:data:`.autograd.ENGINE`) until the patch is undone."""
        self._shared.join(site, "count", None, functools.partial(self._put_on, owner))

    def run(self, site: Site, owner: Any, run: Run) -> None:
        """Count them, and have them run by another function, until the patch is undone."""
        self._shared.join(site, "run", attribution.uncounted(run), functools.partial(self._put_on, owner))

    def _put_on(self, owner: Any, site: Site) -> None:
        inherited, shared = owner.apply, self._shared
        self._inherited = inherited

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            autograd.ENGINE.checkpoints += 1
            run = shared.subscribers[0]
            try:
                if cls is not owner or len(args) < 2 or kwargs:
                    # A subclass may have a forward and a backward of its own, which torch's own apply calls.
                    return super(owner, cls).apply(*args, **kwargs)  # type: ignore[misc]
                return inherited(*args) if run is None else run(args[0], args[1], args[2:])
            except BaseException as error:
                tracebacks.hide(error)
                raise

        site.replace(owner, "apply", classmethod(looks_like(getattr(inherited, "__func__", inherited), apply)))
