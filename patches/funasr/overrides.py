"""Names, before training begins, the overrides that FunASR ignores or changes."""

from __future__ import annotations

import difflib
import inspect
from types import CodeType, ModuleType
from typing import Any, Dict, Iterator, Optional, Set

from ddpfix import log
from ddpfix.patching.site import Site

from . import conf, entry, names
from .entry import plain, section

# Sections whose keys cannot be set at the top level: those of the model can (its configuration is merged flat).
_SECTIONS = ("train_conf", "dataset_conf", "optim_conf", "scheduler_conf")
# Read by the trainers of 1.0.18 and 1.0.19, and used by none of their functions.
_READ_IN_VAIN = frozenset(("disable_gpu_cache",))
# Names of a model and of the places that it is fetched from become others by design.
_RESOLVED = frozenset(("model", "hub", "model_hub", "model_revision", "freeze_param", "init_param", "device"))
# The name of a setting of the trainer's that something else reads at the top level.
_ELSEWHERE = frozenset(("excludes", "self", "kwargs"))
_MISSING = object()


def tell(site: Site, module: ModuleType, owner: Any) -> None:
    """Register for the moment before ``main``, after all other patches."""
    entry.before_main(site, compare)
    entry.around_main(site, names.named)


def compare(run: entry.Run) -> None:
    """One line for each typed override that does not arrive as typed; nothing where all do."""
    told = {key: _difference(run, key, text) for key, text in run.typed.items()}
    for key, line in told.items():
        arrived = _at(run.kwargs, key)
        text = run.typed[key]
        log.setting(key, text, "nothing" if arrived is _MISSING else arrived, line.partition(": ")[2] if line else "")
    lines = [line for line in told.values() if line]
    if lines:
        log.info("these overrides did not take effect as typed:\n  " + "\n  ".join(lines))


def _difference(run: entry.Run, key: str, text: str) -> Optional[str]:
    head, _, rest = key.partition(".")
    if head == "train_conf" and rest and "." not in rest and rest not in _read(run):
        close = difflib.get_close_matches(rest, sorted(_read(run)), n=1, cutoff=0.75)
        hint = f"; did you mean train_conf.{close[0]}?" if close else ""
        return f"{key}={text}: FunASR has no such setting{hint}"
    near = conf.near_name(run, head, rest) if rest and "." not in rest and head.endswith("_conf") else None
    if near and head != "train_conf":
        return f"{key}={text}: FunASR has no such setting; did you mean {head}.{near}?"
    if not rest and key not in _constants(inspect.unwrap(run.namespace["main"])):
        places = [name for name in _SECTIONS if key in section(run.kwargs, name)]
        if not places and key in _named(run):
            places = ["train_conf"]
        if places:
            return f"{key}={text}: FunASR ignores this at the top level. Write ++{places[0]}.{key}={text}"
    return _changed(run, key, text)


def _changed(run: entry.Run, key: str, text: str) -> Optional[str]:
    """Return whether another value arrived than the one that was typed."""
    if key.split(".")[0] in _RESOLVED or "${" in text:
        return None
    wanted, arrived = _parsed(key, text), _at(run.kwargs, key)
    if _MISSING in (wanted, arrived) or (wanted == arrived and isinstance(wanted, bool) == isinstance(arrived, bool)):
        return None
    return f"{key}={text}: FunASR uses {arrived!r} instead"


def _parsed(key: str, text: str) -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    try:
        value = OverridesParser.create().parse_override(f"{key}={text}").value()
    except Exception:
        return _MISSING
    return _MISSING if isinstance(value, (dict, list)) else value


def _at(config: Dict[str, Any], dotted: str) -> Any:
    value: Any = config
    for name in dotted.split("."):
        value = plain(value)
        if not isinstance(value, dict) or name not in value:
            return _MISSING
        value = value[name]
    return plain(value)


def _read(run: entry.Run) -> Set[str]:
    """Return the names that trainer and entry read in ``train_conf``; up to 1.0.5 each method reads them itself."""
    methods = [inspect.unwrap(method) for method in vars(run.namespace["Trainer"]).values()]
    functions = [*methods, inspect.unwrap(run.namespace["main"]), run.namespace.get("_resolve_distributed_config")]
    names = {name for function in functions if hasattr(function, "__code__") for name in _constants(function)}
    return (names | _named(run) | run.read_by_us) - _READ_IN_VAIN


def _named(run: entry.Run) -> Set[str]:
    """Return the names that the trainer's constructor looks for."""
    made = inspect.unwrap(vars(run.namespace["Trainer"])["__init__"])
    return {*_constants(made), *inspect.signature(made).parameters} - _ELSEWHERE - _READ_IN_VAIN


def _constants(function: Any) -> Set[str]:
    return set(_texts(function.__code__))


def _texts(code: CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, CodeType):
            yield from _texts(constant)
        elif isinstance(constant, tuple):
            yield from (part for part in constant if isinstance(part, str))
