"""A rank that fails in an epoch or a validation ends all ranks, with the cause (all releases).

Unpatched, the others wait for it in a collective, as long as its process or torch's time limit lasts. Recipes of 1.x
and 2.x start ranks in the background, where nobody ends them; ``Join.__exit__`` does not report that it was left by an
error.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Dict, Tuple

from torch import distributed

from ddpfix.patching.site import Site
from ddpfix.ranks import failure_watch


def propagate(site: Site, module: ModuleType, owner: Any) -> None:
    """Put on ``Executor.train`` and ``Executor.cv``; once it was there, ranks also watch between the two."""

    def run(wrapped: Any, executor: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
            return wrapped(*args, **kwargs)
        with failure_watch.propagate_failure():
            return wrapped(*args, **kwargs)

    for name in ("train", "cv"):
        site.wrap(owner, name, run)
    site.at_undo(failure_watch.stop)
