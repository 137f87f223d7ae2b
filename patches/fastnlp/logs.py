"""A log file for each rank that fastNLP starts.

With ``output_from_new_proc=FOLDER`` the files are named by the rank of the process that starts the others, which is
always 0: from three ranks on they write over each other, and the output of the failing one is lost.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from ddpfix.patching.site import Site

_RANK = "FASTNLP_GLOBAL_RANK"


def one_each(site: Site, module: ModuleType, owner: Any) -> None:
    """Wrap ``distributed_open_proc``, which gets the new rank in the environment that it hands on."""
    site.wrap(module, "distributed_open_proc", _opened)


def _opened(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    bound = inspect.signature(wrapped).bind(*args, **kwargs)
    rank = bound.arguments["env_copy"].get(_RANK, "")
    if rank.isdigit():
        bound.arguments["rank"] = int(rank)
    return wrapped(*bound.args, **bound.kwargs)
