"""Names, before training begins, the overrides that FunASR ignores or changes, with the nearest name that is read.

Most of FunASR's classes take ``**kwargs`` and swallow what they do not know. So a key counts as unread only if its name
stands nowhere in FunASR's own source, nor in that of the classes that get the section, and if a name that these
classes do read comes near it.

A name that FunASR's tables do not have is named, with its key, where FunASR calls the None that it got instead:
``class = tables.dataset_classes.get(name)`` is None for an unknown name, and the next line says "'NoneType' object is
not callable". Classes may be registered until then (``remote_code``), so nothing is said before.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import re
import sys
import traceback
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from ddpfix import log
from ddpfix.monitor.exit.last_words import explained
from ddpfix.patching.site import Site
from ddpfix.settings.reading import near

from . import entry
from .entry import leaves, plain, section

# Sections whose keys cannot be set at the top level: those of the model can (its configuration is merged flat).
_SECTIONS = ("train_conf", "dataset_conf", "optim_conf", "scheduler_conf")
# Read by the trainers of 1.0.18 and 1.0.19, and used by none of their functions.
_READ_IN_VAIN = frozenset(("disable_gpu_cache",))
# What only a fix of ours reads in older releases (funasr.precision).
_READ_BY_US = frozenset(("use_bf16",))
# Names of a model and of the places that it is fetched from become others by design.
_RESOLVED = frozenset(("model", "hub", "model_hub", "model_revision", "freeze_param", "init_param", "device"))
# The name of a setting of the trainer's that something else reads at the top level.
_ELSEWHERE = frozenset(("excludes", "self", "kwargs"))
_MISSING = object()
# The parts that get dataset_conf as a whole: the key that names one, and FunASR's default.
_OF_DATA = {"index_ds": "", "batch_sampler": "BatchSampler", "dataloader": "DataloaderMapStyle"}
# What hands settings on to another package, whose names are not known here.
_HANDS_ON = re.compile(r"from_pretrained|\b(import|from) (transformers|whisper|modelscope|peft)\b")
_CLASS, _TABLE = "_class", "_classes"
_MOST = 120


def tell(site: Site, module: ModuleType, owner: Any) -> None:
    """Register for the moment before ``main``, after all other patches."""
    entry.before_main(site, compare)
    entry.around_main(site, _explained)


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
    meant = _near_key(run, head, rest) if rest and "." not in rest and head.endswith("_conf") else None
    if meant and head != "train_conf":
        return f"{key}={text}: FunASR has no such setting; did you mean {head}.{meant}?"
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
    return (names | _named(run) | _READ_BY_US) - _READ_IN_VAIN


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


def _near_key(run: entry.Run, name: str, key: str) -> Optional[str]:
    """Return the nearest name that a section has; None where the key may be read, or no name is close to it."""
    parts = _parts(run, name)
    if not parts or None in parts:
        return None
    written = {each for each in section(run.kwargs, name) if f"{name}.{each}" not in run.typed}
    names = written.union(*(_names(part) for part in parts))
    close = difflib.get_close_matches(key, sorted(names), n=1, cutoff=0.8)
    if key in names or not close or (_swallows(parts) and _stands_in(key, parts)):
        return None
    return close[0]


def _parts(run: entry.Run, name: str) -> List[Any]:
    """Return the classes and functions that get a section; None for one that is not known."""
    part = name[: -len("_conf")]
    if name == "dataset_conf":
        conf = section(run.kwargs, name)
        wanted = {"dataset": run.kwargs.get("dataset", entry.DATASET)}
        wanted.update({key: conf.get(key, default) for key, default in _OF_DATA.items()})
        if not hasattr(run.namespace["tables"], "dataloader_classes"):
            del wanted["dataloader"]
        return [_table_of(run, key).get(value) for key, value in wanted.items()]
    return [_table_of(run, part).get(str(run.kwargs.get(part)))]


def _table_of(run: entry.Run, part: str) -> Dict[str, Any]:
    modules = (sys.modules.get("funasr.optimizers"), sys.modules.get("funasr.schedulers"))
    for holder in (run.namespace["tables"], *modules):
        table = getattr(holder, f"{part}_classes", None)
        if isinstance(table, dict):
            return table
    return {}


def _names(part: Any) -> Set[str]:
    """Return the names that a class, its bases, or a function and its module look for."""
    found: Set[str] = set()
    for each in _functions(part):
        found.update(each.co_varnames[: each.co_argcount + each.co_kwonlyargcount])
        found.update(text for text in each.co_consts if isinstance(text, str) and text.isidentifier())
    return found - {"self", "kwargs", "args"}


def _functions(part: Any) -> Iterator[CodeType]:
    for kind in _levels(part) if inspect.isclass(part) else vars(inspect.getmodule(part) or part).values():
        members = vars(kind).values() if inspect.isclass(kind) else [kind]
        yield from (member.__code__ for member in members if inspect.isfunction(member))


def _levels(part: Any) -> Sequence[Any]:
    return inspect.getmro(part) if inspect.isclass(part) else [part]


def _swallows(parts: List[Any]) -> bool:
    """Return whether one of them takes names that it does not list; the others raise a TypeError."""
    try:
        taken = [parameter.kind for part in parts for parameter in inspect.signature(part).parameters.values()]
    except ValueError:
        return True
    return inspect.Parameter.VAR_KEYWORD in taken


def _stands_in(key: str, parts: List[Any]) -> bool:
    """Return whether a name stands anywhere where it may be read; true where that cannot be known."""
    own = {sys.modules.get(level.__module__) for part in parts for level in _levels(part)}
    modules = own | {module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "funasr"}
    word = re.compile(rf"\b{re.escape(key)}\b")
    for module in modules - {None}:
        file = getattr(module, "__file__", None)
        if file is None:
            # A built-in module, or a folder without code.
            continue
        try:
            source = Path(file).read_text(encoding="utf-8")
        except (OSError, ValueError):
            return True
        if word.search(source) or (module in own and _HANDS_ON.search(source)):
            return True
    return False


@contextlib.contextmanager
def _explained(run: entry.Run) -> Iterator[None]:
    """While ``main`` runs, explain an error that an unknown name leads to."""
    with explained(lambda error: _unknown(run, error)):
        yield


def _unknown(run: entry.Run, error: BaseException) -> Optional[str]:
    """Return what to write instead; None where the innermost function has looked no name up in vain."""
    frame = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    registered = run.namespace["tables"]
    tables = {**vars(type(registered)), **vars(registered), **frame.f_globals, **frame.f_locals}
    asserted = isinstance(error, AssertionError)
    for part, table in _looked_up(frame, tables, asserted):
        unknown = {key: name for key, name in leaves(run.kwargs) if isinstance(name, str) and name not in table}
        exact = [key for key in unknown if key.rpartition(".")[2] == part]
        keys = exact if exact or asserted else [key for key in unknown if part in key.rpartition(".")[2]]
        if len(keys) == 1:
            name = unknown[keys[0]]
            why = _not_imported(name) or f"FunASR has no {part} of this name{near(name, table) or _all(table)}"
            return f"{keys[0]}={name}: {why}"
    return None


def _looked_up(frame: Any, tables: Dict[str, Any], asserted: bool) -> Iterator[Tuple[str, Dict[str, Any]]]:
    """(part of the configuration, table) for each name that a function has looked up in vain."""
    used = [name for name in frame.f_code.co_names if name.endswith(_TABLE) and isinstance(tables.get(name), dict)]
    nones = [name[: -len(_CLASS)] for name, value in frame.f_locals.items() if name.endswith(_CLASS) and value is None]
    if asserted:
        # assert optim in optim_classes
        nones += [name[: -len(_TABLE)] for name in used]
    for part in nones:
        for name in used:
            if name[: -len(_TABLE)] in part or part.startswith(name[: -len(_TABLE)]):
                yield part, tables[name]


def _not_imported(name: str) -> str:
    """Return which module of FunASR registers a name, if it could not be imported: FunASR says nothing of it."""
    home = Path(str(sys.modules["funasr"].__file__)).parent
    registers = re.compile(rf"""tables\.register\(\s*["']\w+["'],\s*["']{re.escape(name)}["']""")
    for file in sorted(home.rglob("*.py")):
        module = ".".join(file.relative_to(home.parent).with_suffix("").parts)
        if module not in sys.modules and registers.search(file.read_text(encoding="utf-8", errors="ignore")):
            return f"FunASR could not import its module. Run python -c 'import {module}' to see why"
    return ""


def _all(table: Dict[str, Any]) -> str:
    names = ", ".join(sorted(table))
    return f"; it has {names if len(names) < _MOST else names[:_MOST].rpartition(',')[0] + ' ...'}" if names else ""
