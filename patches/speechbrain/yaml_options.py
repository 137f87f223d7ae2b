"""Run options in the yaml: read before the yaml is loaded, and not shadowed by the parser's defaults.

Recipes read ``run_opts["device"]`` and hand the run options to ``ddp_init_group`` before the yaml is loaded, so what
the yaml says has to be in them. Nothing of the yaml is carried out for that: a value that is no plain one stays with
hparams.
"""

from __future__ import annotations

import os
import re
from importlib import import_module
from typing import Any, Iterator, List, Mapping, Tuple

from ddpfix import log
from ddpfix.matrix.settings import near

from .line import Line
from .parser import truth

# How many places of a key are named.
_MOST = 2
_PLAIN = (bool, int, float, str)


def read(path: str) -> Mapping[str, Any]:
    """Return the top level of a yaml with its tags; empty where the release says itself what is wrong with it."""
    try:
        with open(path, encoding="utf-8") as file:
            tree = import_module("ruamel.yaml").YAML().load(file)
    except Exception as error:
        log.debug(f"{path} is not read before SpeechBrain does so: {error!r}")
        return {}
    return tree if isinstance(tree, Mapping) else {}


def _plain(node: Any) -> Any:
    """Return a value of the yaml as Python has it; None for one that only hparams can tell: a tag, a mapping."""
    tag = getattr(node, "tag", None)
    if getattr(tag, "value", tag) is not None:
        return None
    if isinstance(node, list):
        return [_plain(part) for part in node]
    return next((kind(node) for kind in _PLAIN if isinstance(node, kind)), None)


def misplaced(line: Line) -> None:
    """Name overrides of keys that the yaml does not have, or not at its top level (speechbrain issue 2729)."""
    for item in line.items if line.tree else ():
        key = item.words[0][2:].partition("=")[0]
        if item.option is not None or item.words[0][:2] != "--" or key in line.tree:
            continue
        places = list(_places(line.tree, key, []))
        typed, file = f"--{key}={' '.join(item.texts)}", os.path.basename(line.path)
        if places:
            within = " and ".join(".".join(path) for path, _ in places[:_MOST])
            instead = dict.fromkeys(_override(line.tree, *place, key, " ".join(item.texts)) for place in places[:_MOST])
            log.warning(f"{typed}: {file} has {key} in {within}, not at the top level. Type {' '.join(instead)}")
        elif near(key, filter(_is_text, line.tree)):
            log.warning(f"{typed}: {file} has no {key}{near(key, filter(_is_text, line.tree))}")


def _is_text(key: Any) -> bool:
    return isinstance(key, str)


def _places(node: Any, key: str, path: List[str]) -> Iterator[Tuple[List[str], Any]]:
    """(names of the mappings around it, value) of each key of this name."""
    for name, value in node.items():
        if name == key and path:
            yield path, value
        elif isinstance(value, Mapping) and _is_text(name):
            yield from _places(value, key, [*path, name])


def _override(tree: Mapping[str, Any], path: List[str], value: Any, key: str, text: str) -> str:
    """Return the override that reaches a value: of what it refers to at the top level, or of its mapping."""
    refers = re.fullmatch(r"<(\w+)>", str(getattr(value, "value", "")).strip())
    if refers and refers[1] in tree:
        return f"--{refers[1]}={text}"
    inner = f"{{{key}: {text}}}"
    for name in reversed(path[1:]):
        inner = f"{{{name}: {inner}}}"
    return f"--{path[0]}='{inner}'"


def normalise(line: Line) -> None:
    """Put the yaml's values in the run options for which nothing was typed."""
    for name in filter(line.has, line.options):
        value = _plain(line.tree.get(name))
        if name in line.typed or name == "local_rank" or value is None:
            continue
        if line.options[name].kind == "flag":
            # What is no truth value is something else of the same name.
            value = value if isinstance(value, (bool, int)) else truth(value)
        if value is not None:
            line.values[name] = value
            line.of_yaml.add(name)
