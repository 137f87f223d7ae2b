"""The text of the overrides that SpeechBrain's parser hands to hyperpyyaml.

The release joins all words with "=" and splits them again, so that a value with an "=" is torn; knows no dotted paths;
and a repeated key is an error of the yaml loader's.
"""

from __future__ import annotations

import argparse
import difflib
import io
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ddpfix import log

from . import parser
from .words import Item

Path = Tuple[str, ...]


@dataclass
class _Entry:
    """One top-level key: the whole value as text, and parts of it that were given by dotted paths."""

    value: str = ""
    parts: List[Tuple[Path, str]] = field(default_factory=list)


def text(items: Sequence[Item], tree: Optional[Mapping[str, Any]], arg_parser: argparse.ArgumentParser) -> str:
    """Return the overrides as yaml text; for what the release understands, identical to the release's own.

    Args:
        items: what is no run option, in the order of the command line.
        tree: the yaml's top level, or None if it cannot be read.
        arg_parser: ends the run where a form is not accepted.
    """
    entries: Dict[str, _Entry] = {}
    last = ""
    for item in items:
        value = "".join(" " + word for word in item.texts)
        if not item.name:
            # Words that belong to nothing go where the release puts them: behind what was there last.
            entries.setdefault(last, _Entry()).value += value
            continue
        path = _path(item.name, tree)
        last = path[0]
        if item.bare and tree is not None and last in tree:
            value = _bare(item.name, path, tree, arg_parser)
        if len(path) == 1:
            _repeated(entries.pop(last, None), item.name, value)
            entries[last] = _Entry(value)
        else:
            _check(item, path, tree, arg_parser)
            _put(entries.setdefault(last, _Entry()).parts, path, value)
    return "".join(_line(name, entry, arg_parser) for name, entry in entries.items()).strip()


def _repeated(before: Optional[_Entry], name: str, value: str) -> None:
    if before is not None:
        log.info(f"--{name} is given more than once: the last one counts,{value}")


def _put(parts: List[Tuple[Path, str]], path: Path, value: str) -> None:
    if any(known == path for known, _ in parts):
        log.info(f"--{'.'.join(path)} is given more than once: the last one counts,{value}")
    parts.append((path, value))


def _line(name: str, entry: _Entry, arg_parser: argparse.ArgumentParser) -> str:
    if not entry.parts:
        return f"\n{name}:{entry.value}" if name else entry.value
    whole = _loaded(entry.value, name, arg_parser) if entry.value.strip() else {}
    for path, part in entry.parts:
        branch = whole
        for step in (*path[1:-1], None):
            if not isinstance(branch, dict):
                parser.fail(
                    arg_parser, f"--{'.'.join(path)}: what else is given for --{name} is no mapping to put it in"
                )
            if step is not None:
                branch = branch.setdefault(step, {})
        branch[path[-1]] = _loaded(part, ".".join(path), arg_parser)
    return "\n" + dumped({name: whole}).strip()


def dumped(values: Mapping[str, Any]) -> str:
    """Yaml text of values, tags included."""
    writer = _yaml()
    writer.width = 2**20
    stream = io.StringIO()
    writer.dump(dict(values), stream)
    return stream.getvalue()


def loaded(text: str) -> Any:
    """Return the value of yaml text, with its tags, of which none is carried out."""
    return _yaml().load(text)


def _loaded(value: str, name: str, arg_parser: argparse.ArgumentParser) -> Any:
    try:
        return loaded(f"value:{value}")["value"]
    except Exception as error:
        parser.fail(arg_parser, f"--{name}={value.strip()} is no yaml value: {' '.join(str(error).split())}")


def _yaml() -> Any:
    from importlib import import_module

    return import_module("ruamel.yaml").YAML()


def _path(name: str, tree: Optional[Mapping[str, Any]]) -> Path:
    """Return a key's place; one that contains dots itself wins over a path."""
    parts = tuple(name.split("."))
    return parts if all(parts) and name not in (tree or ()) else (name,)


def _at(path: Path, tree: Mapping[str, Any]) -> Any:
    value: Any = tree
    for step in path:
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _bare(name: str, path: Path, tree: Mapping[str, Any], arg_parser: argparse.ArgumentParser) -> str:
    if not isinstance(_at(path, tree), bool):
        parser.fail(
            arg_parser, f"--{name} has no value: write --{name}=VALUE or --{name} VALUE (--{name}=null for none)"
        )
    return " True"


def _check(item: Item, path: Path, tree: Optional[Mapping[str, Any]], arg_parser: argparse.ArgumentParser) -> None:
    """End the run where the yaml has no mapping to put the value in; warn where the mapping has no such key."""
    if tree is None or path[0] not in tree:
        return
    for depth in range(1, len(path)):
        branch = _at(path[:depth], tree)
        if branch is None and depth > 1:
            return
        if not isinstance(branch, Mapping):
            head = ".".join(path[:depth])
            parser.fail(arg_parser, f"--{item.name}: {head} is no mapping in the yaml; --{head}=VALUE sets it")
    keys = [str(key) for key in _at(path[:-1], tree)]
    if path[-1] not in keys:
        log.warning(f"--{item.name}: {'.'.join(path[:-1])} has no {path[-1]} so far{hint(path[-1], keys)}")


def hint(name: str, known: Sequence[str], dashes: str = "") -> str:
    """Similar names, as the end of a sentence; "" where nothing is close."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.7)
    return f"; did you mean {' or '.join(dashes + word for word in close)}?" if close else ""
