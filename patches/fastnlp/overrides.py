"""Settings for DDP that fastNLP 1.0.x drops without a word, because they stand where nothing reads them.

``Trainer`` takes any keyword, and hands all of them to its driver, which reads ``torch_kwargs['ddp_kwargs']`` alone.
Where the intention is clear, the setting is passed on to there; where it is not, a warning says how it is written.
"""

from __future__ import annotations

import inspect
import os
from types import ModuleType
from typing import Any, Dict, Iterator, List, Mapping, Tuple

from torch.nn.parallel import DistributedDataParallel

from ddpfix import log
from ddpfix.patching.checks import needs_names
from ddpfix.patching.site import Site

FLAG = "find_unused_parameters"
# The line that hands a setting to DDP in 1.0.x, and the one of 0.7.0.
SPELLING = "torch_kwargs={'ddp_kwargs': {%s}}"


# What nothing but DDP takes: wherever one of these stands, it is intended for DDP.
_CLEAR = (FLAG, "static_graph", "broadcast_buffers", "bucket_cap_mb", "gradient_as_bucket_view", "check_reduction")
_LAUNCHED = "FASTNLP_BACKEND_LAUNCH"


def arrive(site: Site, module: ModuleType, owner: Any) -> None:
    """Wrap ``TorchDDPDriver.__init__``, which every keyword reaches."""
    needs_names(owner, "__init__", "_torch_kwargs", "ddp_kwargs")
    site.wrap(owner, "__init__", _made)


def choose(site: Site, module: ModuleType, owner: Any) -> None:
    """Wrap ``choose_driver``, which knows the driver."""
    site.wrap(owner, "choose_driver", _chosen)


def _made(wrapped: Any, driver: Any, args: Any, kwargs: Any) -> Any:
    bound = inspect.signature(wrapped).bind(*args, **kwargs)
    given = bound.arguments.get("torch_kwargs")
    settings = intended_ddp_kwargs(given or {}, bound.arguments.get("kwargs", {}))
    if settings or "ddp_kwargs" in (given or {}):
        bound.arguments["torch_kwargs"] = {**(given or {}), "ddp_kwargs": settings}
    wrapped(*bound.args, **bound.kwargs)
    if settings and (getattr(driver, "outside_ddp", False) or isinstance(driver.model, DistributedDataParallel)):
        for name, value in settings.items():
            log.setting(name, value, "nothing", "the model is wrapped in DDP already")
        log.warning(f"{_listed(settings)} has no effect: the model is wrapped in DDP already. Pass it to that DDP")


def intended_ddp_kwargs(torch_kwargs: Mapping[str, Any], kwargs: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the keywords for DDP that a user gave, wherever he put them; what stands in the right place wins."""
    right = torch_kwargs.get("ddp_kwargs")
    result: Dict[str, Any] = dict(right) if right is not None else {}
    for place, name, value in _misplaced(torch_kwargs, kwargs):
        if name not in result:
            result[name] = value
            log.info(
                f"{place}{name}={value!r} is used as {SPELLING % f'{name!r}: {value!r}'}, where fastNLP expects it"
            )
        elif result[name] is not value and result[name] != value:
            log.warning(f"{place}{name}={value!r} is not used, because {name}={result[name]!r} is given too")
    _name_unclear(torch_kwargs, kwargs)
    return result


def _misplaced(torch_kwargs: Mapping[str, Any], kwargs: Mapping[str, Any]) -> Iterator[Tuple[str, str, Any]]:
    """(place, name, value) of every setting for DDP that stands elsewhere; the clearest places first."""
    fairscale = _mapping(kwargs, "fairscale_kwargs")
    # A dictionary of this name is handed on whole: fastNLP itself tells a name that DDP does not know.
    for place, holder in (("", kwargs), ("fairscale_kwargs: ", fairscale)):
        for name, value in _mapping(holder, "ddp_kwargs").items():
            yield f"{place}ddp_kwargs: ", name, value
    places = (
        ("", kwargs),
        ("torch_kwargs: ", torch_kwargs),
        ("torch_kwargs: fsdp_kwargs: ", _mapping(torch_kwargs, "fsdp_kwargs")),
        ("fsdp_kwargs: ", _mapping(kwargs, "fsdp_kwargs")),
        ("fairscale_kwargs: ", fairscale),
    )
    for place, holder in places:
        for name in _CLEAR:
            if name in holder:
                yield place, name, holder[name]


def _mapping(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = holder.get(name)
    return value if isinstance(value, Mapping) else {}


def _name_unclear(torch_kwargs: Mapping[str, Any], kwargs: Mapping[str, Any]) -> None:
    """Settings that this driver does not read, and that may be intended for another one."""
    of_ddp = set(inspect.signature(DistributedDataParallel.__init__).parameters) - {"self", *_CLEAR}
    for place, holder in (("", kwargs), ("torch_kwargs: ", torch_kwargs)):
        for name in sorted(of_ddp.intersection(holder)):
            log.warning(f"fastNLP does not read {place}{name}. For DDP write {SPELLING % f'{name!r}: ...'}")
    others = (
        ("torch_fsdp", "fsdp_kwargs", _mapping(torch_kwargs, "fsdp_kwargs")),
        ("torch_fsdp", "fsdp_kwargs", _mapping(kwargs, "fsdp_kwargs")),
        ("fairscale", "fairscale_kwargs", _mapping(kwargs, "fairscale_kwargs")),
    )
    for driver, place, holder in others:
        left = [name for name in holder if name not in (*_CLEAR, "ddp_kwargs")]
        if left:
            log.warning(
                f"fastNLP reads {place} ({', '.join(left)}) with driver={driver!r} only, and this model trains with"
                f" DDP. For DDP write {SPELLING % '...'}"
            )


def _chosen(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    given = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    driver, rest = given["driver"], given.get("kwargs", {})
    if "wo_auto_param_call" in rest:
        log.warning("fastNLP does not read wo_auto_param_call: the keyword is model_wo_auto_param_call")
    ddp_settings = _ddp_settings(rest)
    if not isinstance(driver, str):
        if ddp_settings:
            log.warning(f"{', '.join(ddp_settings)} has no effect with your own driver object: pass it to that driver")
    elif driver == "torch_fsdp" and _LAUNCHED in os.environ:
        log.warning(
            "driver='torch_fsdp' under torchrun trains with DDP: nothing is sharded, and fsdp_kwargs has no effect."
            " fastNLP shards only where it starts the ranks itself (python script.py, device=[0, 1])"
        )
    elif driver in ("fairscale", "deepspeed", "torch_fsdp") and ddp_settings:
        advice = (
            "fairscale_kwargs={'fs_type': 'ddp', 'ddp_kwargs': {...}}" if driver == "fairscale" else "driver='torch'"
        )
        log.warning(f"{', '.join(ddp_settings)} has no effect with driver={driver!r}. For DDP write {advice}")
    return wrapped(*args, **kwargs)


def _ddp_settings(rest: Mapping[str, Any]) -> List[str]:
    """Return the places that hold a setting for DDP."""
    inner = _mapping(rest, "torch_kwargs")
    direct = [name for name in ("ddp_kwargs", *_CLEAR) if rest.get(name) is not None]
    return direct + [f"torch_kwargs: {name}" for name in ("ddp_kwargs", *_CLEAR) if inner.get(name) is not None]


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())
