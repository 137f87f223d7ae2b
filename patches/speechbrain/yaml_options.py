"""Run options in the yaml: read before the yaml is loaded, and not shadowed by the parser's defaults.

Recipes read ``run_opts["device"]`` and hand the run options to ``ddp_init_group`` before the yaml is loaded, so what
the yaml says has to be in them. Nothing of the yaml is carried out for that: a value that is no plain one is left to
``Brain.__init__``, where hparams has it.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from types import ModuleType
from typing import Any, Dict, Mapping, Optional

from ddpfix import log
from ddpfix.patching.site import Site

from .line import Line, after
from .options import Options, made, typed
from .parser import truth

_PLAIN = (bool, int, float, str)


def read(path: str) -> Optional[Mapping[str, Any]]:
    """Return the top level of a yaml with its tags, or None: the release says itself what is wrong with it."""
    try:
        with open(path, encoding="utf-8") as file:
            tree = import_module("ruamel.yaml").YAML().load(file)
    except Exception as error:
        log.debug(f"{path} is not read before SpeechBrain does so: {error!r}")
        return None
    return tree if isinstance(tree, Mapping) else None


def _plain(node: Any) -> Any:
    """Return a value of the yaml as Python has it; None for one that only hparams can tell: a tag, a mapping."""
    tag = getattr(node, "tag", None)
    if getattr(tag, "value", tag) is not None:
        return None
    if isinstance(node, list):
        return [_plain(part) for part in node]
    return next((kind(node) for kind in _PLAIN if isinstance(node, kind)), None)


def fits(value: Any, flag: bool) -> bool:
    """Return whether a yaml value fits a run option of that name, and is not something else of the same name."""
    if flag:
        return isinstance(value, (bool, int)) or (isinstance(value, str) and truth(value) is not None)
    return isinstance(value, (*_PLAIN, list, tuple))


def arrive(site: Site, module: ModuleType, owner: Any) -> None:
    """Read the yaml when the command line is parsed."""
    after(site, settle)


def brain(site: Site, module: ModuleType, owner: Any) -> None:
    """Wrap ``Brain.__init__`` (before 1.1.0)."""
    after(site, settle)
    site.wrap(owner, "__init__", _made)


def settle(line: Line) -> None:
    """Put the yaml's values in the run options for which nothing was typed."""
    if line.tree is None:
        return
    ours = {"find_unused_parameters"}
    names = [name for name in line.options if (line.has(name) or name in ours) and name not in line.typed]
    for name, value in ((name, _plain(line.in_yaml(name))) for name in names):
        flag = line.options[name].kind == "flag"
        if name != "local_rank" and value is not None and fits(value, flag):
            line.values[name] = truth(value) if flag and isinstance(value, str) else value
            line.of_yaml.add(name)


def _made(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    bound = inspect.signature(wrapped).bind(*args, **kwargs)
    run_opts, hparams = bound.arguments.get("run_opts"), bound.arguments.get("hparams")
    if isinstance(run_opts, dict) and isinstance(hparams, Mapping):
        bound.arguments["run_opts"] = unshadowed(run_opts, hparams)
    return wrapped(*bound.args, **bound.kwargs)


def unshadowed(run_opts: Dict[str, Any], hparams: Mapping[str, Any]) -> Dict[str, Any]:
    """Run options without those that nobody typed and the yaml has, so that Brain takes the yaml's.

    A truth value that the yaml has as a text is put in as what it means.
    """
    given, kept = typed(run_opts), {}
    for name, value in run_opts.items():
        theirs = hparams.get(name)
        flag = isinstance(value, bool)
        if name in given or theirs is None or not fits(theirs, flag):
            kept[name] = value
        elif flag and isinstance(theirs, str):
            kept[name] = truth(theirs)
    if kept == run_opts:
        return run_opts
    return made(kept, given, getattr(run_opts, "of_yaml", ())) if isinstance(run_opts, Options) else kept
