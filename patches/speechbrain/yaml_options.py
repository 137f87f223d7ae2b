"""Run options in the yaml: read before the yaml is loaded, and not shadowed by the parser's defaults.

Recipes read ``run_opts["device"]`` and hand the run options to ``ddp_init_group`` before the yaml is loaded, so what
the yaml says has to be in them. Nothing of the yaml is carried out for that: a value that is no plain one stays with
hparams.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any, Mapping

from ddpfix import log
from ddpfix.patching.site import Site

from .line import Line, after
from .parser import truth

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


def arrive(site: Site, module: ModuleType, owner: Any) -> None:
    """Read the yaml when the command line is parsed."""
    after(site, settle)


def settle(line: Line) -> None:
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
