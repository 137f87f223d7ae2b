"""SpeechBrain's command line, read as it is meant and handed to the release's own parser as that one wants it.

Before 1.1.0 the parser is the function ``speechbrain.core.parse_arguments``, from then on the class method
``RunOptions.from_command_line_args``, to which ``speechbrain.parse_arguments`` is bound (speechbrain issue 2340).
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import sys
from types import MethodType, ModuleType
from typing import Any, List, Mapping, Optional, Sequence, Tuple

from ddpfix import log
from ddpfix.patching.site import Site

from . import options, overrides_yaml, parser, unknown, words, yaml_options
from .line import AFTER, BEFORE, KNOWN, Line, know
from .parser import Option
from .words import Item

FLAG = Option("find_unused_parameters", "flag", real=False)
Parsed = Tuple[str, Any, str]


def install(site: Site, module: ModuleType, owner: Any) -> None:
    """Wrap ``parse_arguments``."""
    _install(site, owner, "parse_arguments")


def run_options(site: Site, module: ModuleType, owner: Any) -> None:
    """Wrap ``RunOptions.from_command_line_args`` (1.1.0 and later)."""
    _install(site, owner, "from_command_line_args")


def _install(site: Site, owner: Any, name: str) -> None:
    """Wrap the release's parser, and bind every name of it anew that was bound when SpeechBrain was imported."""
    parser.of(owner)
    stock = getattr(owner, name)

    def parsed(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return parse(owner, wrapped, args, kwargs)

    know(site, FLAG)
    unknown.install(site)
    site.wrap(owner, name, parsed)
    if isinstance(stock, MethodType):
        _bind_anew(site, stock, getattr(owner, name))


def _bind_anew(site: Site, stock: MethodType, now: Any) -> None:
    """Each ``getattr`` makes another bound method, so that copies are found by what they are bound to."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if not isinstance(module, ModuleType) or not isinstance(names, dict):
            continue
        for name, value in list(names.items()):
            if type(value) is MethodType and value == stock:
                site.replace(module, name, now)


def parse(owner: Any, wrapped: Any, args: Any, kwargs: Any) -> Parsed:
    """What the release's parser returns, for what was meant: path of the yaml, run options, overrides as yaml text."""
    given = inspect.signature(wrapped).bind(*args, **kwargs).arguments.get("arg_list")
    argv = [str(word) for word in (sys.argv[1:] if given is None else given)]
    try:
        return _parse(owner, wrapped, argv)
    except Exception as error:
        # What is not accepted ends by SystemExit; anything else is a fault of ours, and no reason to end the job.
        log.warning(f"the command line could not be looked at ({error!r}), and goes to SpeechBrain as it was typed")
        stock: Parsed = wrapped(argv)
        return stock


def _parse(owner: Any, wrapped: Any, argv: List[str]) -> Parsed:
    told = parser.of(owner)
    known = {**{option.name: option for option in KNOWN}, **parser.options(told)}
    index = words.path_index(argv, known)
    if index is None or {"-h", "--help", "--"} & set(argv):
        stock: Parsed = wrapped(argv)
        return stock
    line = _line(told, known, argv, index)
    return _finished(line, wrapped([argv[index], *_canonical(line)]))


def _line(told: argparse.ArgumentParser, known: Any, argv: Sequence[str], index: int) -> Line:
    tree = yaml_options.read(argv[index])
    items = words.assign(words.items(argv, index), known, () if tree is None else list(tree), told)
    line = Line(told, known, tree, items)
    for item in items:
        if item.option is not None:
            _hear(line, item, item.option)
    for hook in list(BEFORE):
        hook(line)
    return line


def _hear(line: Line, item: Item, option: Option) -> None:
    """Note what was typed for a run option, or end the run if that is no truth value and has to be one."""
    text = " ".join(item.texts)
    value: Any = text
    if option.kind == "flag":
        value = True if item.bare else parser.truth(text)
        if value is None:
            line.fail(f"--{option.name}={text}: accepted are {parser.ACCEPTED}")
    if line.said.get(option.name, value) != value:
        log.info(f"--{option.name} is given more than once: the last one counts, {value}")
    line.said[option.name] = value


def _canonical(line: Line) -> List[str]:
    """The run options as every release's parser takes them: in full, a flag only where it is meant, and no others."""
    argv: List[str] = []
    for item in line.items:
        if item.option is not None and item.option.real and item.option.kind != "flag":
            argv.append(f"--{item.option.name}" + ("" if item.value is None else f"={item.value}"))
            argv.extend(item.words)
    for name, option in line.options.items():
        if option.real and option.kind == "flag" and line.said.get(name):
            argv.append(f"--{name}" if option.bare else f"--{name}=True")
    return argv


def _finished(line: Line, result: Parsed) -> Parsed:
    path, run_opts, _ = result
    line.values = dict(run_opts.items())
    line.typed = set(line.said)
    for name, value in line.said.items():
        line.values[name] = _value(line, name, value)
    overridden = [item for item in line.items if item.option is None]
    line.overrides = overrides_yaml.text(overridden, line.tree, line.told)
    for hook in list(AFTER):
        hook(line)
    line.overrides = _told_to_yaml(line)
    unknown.remember([item.name.split(".")[0] for item in overridden], list(line.options))
    return path, _returned(line, run_opts), line.overrides


def _value(line: Line, name: str, said: Any) -> Any:
    """What the release made of it, except where it does not do what its own ``Brain`` expects."""
    option, value = line.options[name], line.values.get(name)
    if option.kind == "flag" or not option.real:
        return said
    if isinstance(value, list) and option.kind == "one" and len(value) == 1:
        return value[0]
    if name == "optimizer_step_limit" and isinstance(value, str):
        # From 1.1.0 on: the parser takes the type of a default that is None, and Brain compares the text to a number.
        if not value.lstrip("+-").isdigit():
            line.fail(f"--{name}={value}: a whole number is accepted")
        return int(value)
    return value


def _returned(line: Line, run_opts: Any) -> Any:
    if isinstance(run_opts, dict):
        return options.made(line.values, line.typed, line.of_yaml)
    # RunOptions is frozen, and its Brain reads only the names in overridden_args.
    known = {one.name for one in dataclasses.fields(run_opts)} - {"overridden_args"}
    changed = {name: value for name, value in line.values.items() if name in known and value != run_opts[name]}
    heard = set(run_opts.overridden_args) | (line.typed & known)
    return dataclasses.replace(run_opts, **changed, overridden_args=heard)


def _told_to_yaml(line: Line) -> str:
    """The overrides, with the run options that were typed and that the yaml has as well."""
    lines: List[Optional[str]] = [line.overrides or None]
    for name in sorted(line.typed):
        node, value = line.in_yaml(name), line.values.get(name, line.said.get(name))
        if line.tree is None or name not in line.tree or isinstance(node, Mapping):
            continue
        if not (isinstance(node, type(value)) and node == value):
            lines.append(overrides_yaml.dumped({name: value}).strip())
    return "\n".join(text for text in lines if text)
