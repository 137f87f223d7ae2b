"""A train logger's methods are no collectives: they may be called on the main process only (1.1.0 to 1.1.2).

From 1.1.0 ``main_process_only`` ends in a broadcast of the result. ``if if_main_process(): logger.log_stats(...)`` is
then a collective on one rank: it crashes, or answers another one. SpeechBrain's own pre-training recipes for wav2vec
2.0 and BEST-RQ do this. Before, the methods did their work on the main process and nothing elsewhere; they do
so again. They return nothing that another rank could need.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from types import ModuleType
from typing import Any, Callable, Iterator, Tuple

from ddpfix.patching.site import PatchError, Site
from ddpfix.user_code import module_of


def without_broadcast(site: Site, module: ModuleType, owner: Any) -> None:
    """All methods of the module's classes that ``main_process_only`` has wrapped."""
    methods = list(_wrapped(module))
    if not methods:
        raise PatchError(f"{module.__name__} has no method for the main process only")
    distributed = import_module("speechbrain.utils.distributed")
    if not hasattr(distributed, "MainProcessContext"):
        raise PatchError("speechbrain.utils.distributed has no MainProcessContext")
    for kind, name in methods:
        site.wrap_hot(kind, name, _without_broadcast(distributed))


def _wrapped(module: ModuleType) -> Iterator[Tuple[Any, str]]:
    for kind in vars(module).values():
        if inspect.isclass(kind) and module_of(kind) == module.__name__:
            for name, method in vars(kind).items():
                if getattr(getattr(method, "__code__", None), "co_name", "") == "main_proc_wrapped_func":
                    yield kind, name


def _without_broadcast(distributed: Any) -> Callable[[Any], Callable[..., Any]]:
    def make(original: Any) -> Callable[..., Any]:
        # Other patchers may have wrapped the method: what main_process_only holds is the innermost one.
        plain = inspect.unwrap(original)

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            # In this context what is called may use barriers and broadcasts, which do nothing.
            with distributed.MainProcessContext():
                return plain(self, *args, **kwargs) if distributed.if_main_process() else None

        return method

    return make
