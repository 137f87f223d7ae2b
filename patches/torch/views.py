"""``gradient_as_bucket_view=True``, where the user asks for it (``DDPFIX_BUCKET_VIEW=1``)."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, Dict, Tuple

from ddpfix import log
from ddpfix.registry import Site

_KEYWORD = "gradient_as_bucket_view"


def of_buckets(site: Site, module: ModuleType, owner: Any) -> None:
    """Put on ``DistributedDataParallel.__init__``: gradients are not copied out of the buckets that were reduced."""

    def built(wrapped: Any, wrapper: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        bound = inspect.signature(wrapped).bind(*args, **kwargs)
        if bound.arguments.setdefault(_KEYWORD, True) is False:
            log.info(f"{_KEYWORD}=False is your own setting and stays (DDPFIX_BUCKET_VIEW=1 is for models without one)")
        return wrapped(*bound.args, **bound.kwargs)

    site.once(owner, "__init__", built)
