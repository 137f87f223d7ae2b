"""Settings for DDP that fastNLP 1.0.x drops without a word, because they stand where nothing reads them.

``Trainer`` takes any keyword, and hands all of them to its driver, which reads ``torch_kwargs['ddp_kwargs']`` alone.
What stands elsewhere, at the top level, directly in ``torch_kwargs`` or for another driver, is passed on to there.
"""

from __future__ import annotations

import inspect
import os
from types import ModuleType
from typing import Any, Dict, Iterator, Mapping, Tuple

from torch.nn.parallel import DistributedDataParallel

from ddpfix import log
from ddpfix.patching.checks import needs_names
from ddpfix.patching.site import Site

FLAG = "find_unused_parameters"
# What nothing but DDP takes: wherever one of these stands, it is intended for DDP.
_CLEAR = (FLAG, "static_graph", "broadcast_buffers", "bucket_cap_mb", "gradient_as_bucket_view", "check_reduction")


def arrive(site: Site, module: ModuleType, owner: Any) -> None:
    """Wrap ``TorchDDPDriver.__init__``, which every keyword reaches."""
    needs_names(owner, "__init__", "_torch_kwargs", "ddp_kwargs")
    site.wrap(owner, "__init__", _made)


def choose(site: Site, module: ModuleType, owner: Any) -> None:
    """Wrap ``choose_driver``, which knows the driver: name what has no effect with it."""
    site.wrap(owner, "choose_driver", _chosen)


def _chosen(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    given = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    driver, rest = given["driver"], given.get("kwargs", {})
    inner, of_ddp = rest.get("torch_kwargs") or {}, ("ddp_kwargs", *_CLEAR)
    places = [name for name in of_ddp if rest.get(name) is not None]
    places += [f"torch_kwargs: {name}" for name in of_ddp if inner.get(name) is not None]
    if driver == "torch_fsdp" and "FASTNLP_BACKEND_LAUNCH" in os.environ:
        log.warning(
            "driver='torch_fsdp' under torchrun trains with DDP: nothing is sharded, and fsdp_kwargs has no effect."
            " fastNLP shards only where it starts the ranks itself (python script.py, device=[0, 1])"
        )
    elif places and (not isinstance(driver, str) or driver in ("fairscale", "deepspeed", "torch_fsdp")):
        with_it = f"driver={driver!r}" if isinstance(driver, str) else "your own driver object"
        log.warning(f"{', '.join(places)} has no effect with {with_it}: these are settings of driver='torch'")
    unread = set(inspect.signature(DistributedDataParallel.__init__).parameters) - {"self", *_CLEAR}
    for place, holder in (("", rest), ("torch_kwargs: ", inner)):
        for name in sorted(unread.intersection(holder)):
            log.warning(
                f"fastNLP does not read {place}{name}. For DDP write torch_kwargs={{'ddp_kwargs': {{{name!r}: ...}}}}"
            )
    return wrapped(*args, **kwargs)


def _made(wrapped: Any, driver: Any, args: Any, kwargs: Any) -> Any:
    bound = inspect.signature(wrapped).bind(*args, **kwargs)
    torch_kwargs = bound.arguments.get("torch_kwargs") or {}
    settings: Dict[str, Any] = dict(torch_kwargs.get("ddp_kwargs") or {})
    for place, name, value in _misplaced(torch_kwargs, bound.arguments.get("kwargs", {})):
        if name not in settings:
            settings[name] = value
            log.info(
                f"{place}{name}={value!r} is used as torch_kwargs={{'ddp_kwargs': {{{name!r}: {value!r}}}}}, where"
                " fastNLP expects it"
            )
        elif settings[name] is not value and settings[name] != value:
            log.warning(f"{place}{name}={value!r} is not used, because {name}={settings[name]!r} is given too")
    if settings or "ddp_kwargs" in torch_kwargs:
        bound.arguments["torch_kwargs"] = {**torch_kwargs, "ddp_kwargs": settings}
    wrapped(*bound.args, **bound.kwargs)
    if settings and (getattr(driver, "outside_ddp", False) or isinstance(driver.model, DistributedDataParallel)):
        for name, value in settings.items():
            log.setting(name, value, "nothing", "the model is wrapped in DDP already")
        listed = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        log.warning(f"{listed} has no effect: the model is wrapped in DDP already. Pass it to that DDP")


def _misplaced(torch_kwargs: Mapping[str, Any], kwargs: Mapping[str, Any]) -> Iterator[Tuple[str, str, Any]]:
    """(place, name, value) of every setting for DDP that stands elsewhere; the clearest places first."""
    places: Dict[str, Any] = {"": kwargs, "torch_kwargs: ": torch_kwargs}
    for place, holder in list(places.items()):
        places[f"{place}fsdp_kwargs: "] = holder.get("fsdp_kwargs") or {}
    places["fairscale_kwargs: "] = kwargs.get("fairscale_kwargs") or {}
    # A dictionary of this name is handed on whole: DDP itself tells a name that it does not know.
    for place in ("", "fairscale_kwargs: "):
        for name, value in dict(places[place].get("ddp_kwargs") or {}).items():
            yield f"{place}ddp_kwargs: ", name, value
    for place, holder in places.items():
        for name in _CLEAR:
            if name in holder:
                yield place, name, holder[name]
