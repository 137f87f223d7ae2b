"""SpeechBrain's run options, read as intended and passed to the release's own parser in the form that it accepts.

Before 1.1.0 the parser is the function ``speechbrain.core.parse_arguments``, from then on the class method
``RunOptions.from_command_line_args``, to which ``speechbrain.parse_arguments`` is bound (speechbrain issue 2340).
Overrides of the yaml are passed on as they were typed.

Before 1.1.0 the parser returns a full dict in which a default looks like something typed, so that a yaml value has no
chance (speechbrain issue 2340: ``find_unused_parameters: True`` in the yaml was ignored). From 1.1.0 ``RunOptions``
keeps the names of what was typed in ``overridden_args``.

Recipes read ``run_opts["device"]`` and hand the run options to ``ddp_init_group`` before the yaml is loaded, so what
the yaml says has to be in them. Nothing of the yaml is carried out for that: a value that is no plain one stays with
hparams.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import sys
from importlib import import_module
from types import MethodType, ModuleType
from typing import Any, Dict, FrozenSet, Iterator, List, Mapping, Tuple

from ddpfix import log
from ddpfix.modules import globals_of
from ddpfix.patching.site import Site
from ddpfix.settings.reading import near

from . import device, parser, precision
from .line import Hooks, Line

Parsed = Tuple[str, Any, str]
Given = Tuple[bool, Any]
# How many places of a key are named.
_MOST = 2
_PLAIN = (bool, int, float, str)


class Options(Dict[str, Any]):
    """The parser's dict before 1.1.0, which also knows what was typed; copies of it are plain dicts."""

    typed: FrozenSet[str] = frozenset()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self),)


def user_value(run_opts: Any, hparams: Any, name: str) -> Given:
    """Return the user's value of a flag: typed, True in a dict of any origin, or in the yaml.

    False in a dict is the parser's default as well, and so nothing given. A null in the yaml is nothing given; a quoted
    "True" or "False" there is what it means.

    Returns:
        (True, value), or (False, None) where he gave none.
    """
    typed = getattr(run_opts, "typed", getattr(run_opts, "overridden_args", ()))
    if name in typed or (isinstance(run_opts, Mapping) and run_opts.get(name)):
        return True, run_opts[name]
    value = hparams.get(name) if isinstance(hparams, Mapping) else None
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower(), value)
    return value is not None, value


def install(site: Site, module: ModuleType, owner: Any) -> None:
    """Wrap the release's parser, and bind every name of it anew that was bound when SpeechBrain was imported."""
    name = "parse_arguments" if owner is module else "from_command_line_args"
    parser.of(owner)
    original, hooks = getattr(owner, name), site.keep(Hooks)

    def parsed(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return parse(hooks, owner, wrapped, args, kwargs)

    site.wrap(owner, name, parsed)
    if isinstance(original, MethodType):
        _bind_anew(site, original, getattr(owner, name))


def _bind_anew(site: Site, original: MethodType, now: Any) -> None:
    """Each ``getattr`` makes another bound method, so that copies are found by what they are bound to."""
    for module in list(sys.modules.values()):
        for name, value in list(globals_of(module).items()):
            if type(value) is MethodType and value == original:
                site.replace(module, name, now)


def parse(hooks: Hooks, owner: Any, wrapped: Any, args: Any, kwargs: Any) -> Parsed:
    """Return the result of the release's parser for the intended line: yaml path, run options, overrides as yaml."""
    given = inspect.signature(wrapped).bind(*args, **kwargs).arguments.get("arg_list")
    argv = [str(word) for word in (sys.argv[1:] if given is None else given)]
    yaml = next((word for word in argv if word.lower().endswith((".yaml", ".yml")) and word[:1] != "-"), None)
    try:
        if yaml is not None and not {"-h", "--help", "--"} & set(argv):
            arg_parser, ours = parser.of(owner), (*device.OPTIONS, *precision.OPTIONS)
            known = {**{option.name: option for option in ours}, **parser.options(arg_parser)}
            line = Line(arg_parser, known, _read_yaml(yaml), yaml)
            line.read(argv)
            _name_misplaced(line)
            precision.check(line)
            path, run_opts, overrides = wrapped(line.argv())
            return path, _finished(hooks, line, run_opts), overrides
    except Exception as error:
        # What is not accepted ends by SystemExit; anything else is a fault of ours, and no reason to end the job.
        log.warning(f"could not read the command line ({error!r}). SpeechBrain gets it unchanged")
    path, run_opts, overrides = wrapped(argv)
    return path, run_opts, overrides


def _finished(hooks: Hooks, line: Line, run_opts: Any) -> Any:
    line.values = dict(run_opts.items())
    line.typed = set(line.user_values)
    for name, value in line.user_values.items():
        if line.options[name].kind == "flag" or not line.has(name):
            line.values[name] = value
    for name in set(line.options) - line.typed - {"local_rank", "distributed_launch"}:
        # Put the yaml's values in the run options for which nothing was typed.
        value = _plain(line.tree.get(name)) if line.has(name) else None
        if line.options[name].kind == "flag" and not isinstance(value, (bool, int)):
            # What is no truth value is something else of the same name.
            value = parser.truth(value)
        if value is not None:
            line.values[name] = value
            line.of_yaml.add(name)
    limit = line.values.get("optimizer_step_limit")
    if isinstance(limit, str) and limit.isdigit():
        # From 1.1.0 on it is a text that Brain compares with a number.
        line.values["optimizer_step_limit"] = int(limit)
    for hook in (device.launcher, device.normalise, precision.normalise, *hooks):
        hook(line)
    return _returned(line, run_opts)


def _returned(line: Line, run_opts: Any) -> Any:
    if isinstance(run_opts, dict):
        made = Options(line.values)
        made.typed = frozenset(line.typed)
        return made
    # RunOptions is frozen, and its Brain reads only the names in overridden_args.
    known = {one.name for one in dataclasses.fields(run_opts)} - {"overridden_args"}
    changed = {name: value for name, value in line.values.items() if name in known and value != run_opts[name]}
    overridden = set(run_opts.overridden_args) | (line.typed & known)
    return dataclasses.replace(run_opts, **changed, overridden_args=overridden)


def _read_yaml(path: str) -> Mapping[str, Any]:
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


def _name_misplaced(line: Line) -> None:
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
