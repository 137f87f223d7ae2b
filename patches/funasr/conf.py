"""Finds misspelt keys of a section (``dataset_conf``, ``optim_conf``, ...) and the nearest name that is read.

Most of FunASR's classes take ``**kwargs`` and swallow what they do not know. So a key counts as unread only if its name
stands nowhere in FunASR's own source, nor in that of the classes that get the section, and if a name that these
classes do read comes near it.
"""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from pathlib import Path
from types import CodeType
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set

from .entry import DATASET, Run, section

# The parts that get dataset_conf as a whole: the key that names one, and FunASR's default.
_OF_DATA = {"index_ds": "", "batch_sampler": "BatchSampler", "dataloader": "DataloaderMapStyle"}
# What hands settings on to another package, whose names are not known here.
_HANDS_ON = re.compile(r"from_pretrained|\b(import|from) (transformers|whisper|modelscope|peft)\b")


def near_name(run: Run, name: str, key: str) -> Optional[str]:
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


def _parts(run: Run, name: str) -> List[Any]:
    """Return the classes and functions that get a section; None for one that is not known."""
    part = name[: -len("_conf")]
    if name == "dataset_conf":
        conf = section(run.kwargs, name)
        wanted = {"dataset": run.kwargs.get("dataset", DATASET)}
        wanted.update({key: conf.get(key, default) for key, default in _OF_DATA.items()})
        if not hasattr(run.namespace["tables"], "dataloader_classes"):
            del wanted["dataloader"]
        return [_table(run, key).get(value) for key, value in wanted.items()]
    return [_table(run, part).get(str(run.kwargs.get(part)))]


def _table(run: Run, part: str) -> Dict[str, Any]:
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
