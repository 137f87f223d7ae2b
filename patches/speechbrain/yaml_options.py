"""Run options in the yaml: read before the yaml is loaded, and not shadowed by the parser's defaults.

Recipes read ``run_opts["device"]`` and hand the run options to ``ddp_init_group`` before the yaml is loaded, so what
the yaml says has to be in them. Nothing of the yaml is carried out for that: a value that is no plain one is left to
``Brain.__init__``, where hparams has it.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from types import ModuleType
from typing import Any, Dict, Iterable, Mapping, Optional

from ddpfix import log
from ddpfix.patching.site import Site

from . import overrides_yaml
from .line import Line, after
from .options import Options, made, typed
from .parser import truth

_PLAIN = (bool, int, float, str)
_NAMED = re.compile(r"<([^<>]*)>")


def read(path: str) -> Optional[Mapping[str, Any]]:
    """Return the top level of a yaml with its tags, or None: the release says itself what is wrong with it."""
    try:
        with open(path, encoding="utf-8") as file:
            tree = overrides_yaml.loaded(file.read())
    except Exception as error:
        log.debug(f"{path} is not read before SpeechBrain does so: {error!r}")
        return None
    return tree if isinstance(tree, Mapping) else None


def values(tree: Mapping[str, Any], names: Iterable[str], overrides: str) -> Dict[str, Any]:
    """Return the values of top-level keys in hparams; a key that only a tag's execution would tell is left out.

    Args:
        tree: the yaml's top level.
        names: the keys that are wanted.
        overrides: those of the command line, as yaml text.
    """
    core = import_module("hyperpyyaml.core")
    wanted = [name for name in names if name in tree]
    if not wanted:
        return {}
    try:
        tree = dict(tree)
        if overrides:
            core.recursive_update(tree, overrides_yaml.loaded(overrides))
        needed: Dict[str, Any] = {}
        known = [name for name in wanted if _gather(name, tree, needed, ())]
        # What is left holds plain values and references among them, so that loading it carries out nothing.
        loaded = core.load_hyperpyyaml(overrides_yaml.dumped(needed)) if known else {}
    except Exception as error:
        log.debug(f"run options in the yaml are not read before SpeechBrain does so: {error!r}")
        return {}
    return {name: loaded[name] for name in known if loaded.get(name) is not None}


def _gather(name: str, tree: Mapping[str, Any], needed: Dict[str, Any], trail: Any) -> bool:
    """Note a key and all that it refers to; whether all of these are plain values."""
    if name in needed:
        return True
    if name not in tree or name in trail:
        return False
    node = tree[name]
    if not _is_plain(node) and not (
        str(_tag(node)) in ("!ref", "!copy")
        and isinstance(node.value, str)
        and all(_gather(other, tree, needed, (*trail, name)) for other in _NAMED.findall(node.value))
    ):
        return False
    needed[name] = node
    return True


def _tag(node: Any) -> Any:
    tag = getattr(node, "tag", None)
    return getattr(tag, "value", tag)


def _is_plain(node: Any) -> bool:
    if isinstance(node, list):
        return _tag(node) is None and all(_is_plain(part) for part in node)
    return node is None or (isinstance(node, _PLAIN) and _tag(node) is None)


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
    for name, value in values(line.tree, names, line.overrides).items():
        flag = line.options[name].kind == "flag"
        if name != "local_rank" and fits(value, flag):
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
