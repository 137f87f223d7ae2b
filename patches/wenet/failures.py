"""A rank that fails in an epoch or a validation tells all ranks the cause (all releases).

Unpatched, the others wait for it in a collective, as long as its process or torch's time limit lasts. Recipes of 1.x
and 2.x start ranks in the background, where nobody ends them; ``Join.__exit__`` does not report that it was left by an
error.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Dict, Tuple

from torch import distributed

from ddpfix.patching.site import Site
from ddpfix.ranks.failures import first_failure


def propagate(site: Site, module: ModuleType, owner: Any) -> None:
    def run(wrapped: Any, executor: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
            return wrapped(*args, **kwargs)
        with first_failure.propagate_failure():
            return wrapped(*args, **kwargs)

    for name in ("train", "cv"):
        site.wrap(owner, name, run)
