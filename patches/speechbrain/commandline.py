"""SpeechBrain's command line, read as intended and passed to the release's own parser in the form that it accepts.

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
from ddpfix.modules import globals_of
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
    original = getattr(owner, name)

    def parsed(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return parse(owner, wrapped, args, kwargs, typed)

    typed = site.keep(unknown.Typed)
    know(site, FLAG)
    unknown.install(site)
    site.wrap(owner, name, parsed)
    if isinstance(original, MethodType):
        _bind_anew(site, original, getattr(owner, name))


def _bind_anew(site: Site, original: MethodType, now: Any) -> None:
    """Each ``getattr`` makes another bound method, so that copies are found by what they are bound to."""
    for module in list(sys.modules.values()):
        for name, value in list(globals_of(module).items()):
            if type(value) is MethodType and value == original:
                site.replace(module, name, now)


def parse(owner: Any, wrapped: Any, args: Any, kwargs: Any, typed: unknown.Typed) -> Parsed:
    """Return the result of the release's parser for the intended line: yaml path, run options, overrides as yaml."""
    given = inspect.signature(wrapped).bind(*args, **kwargs).arguments.get("arg_list")
    argv = [str(word) for word in (sys.argv[1:] if given is None else given)]
    try:
        return _parse(owner, wrapped, argv, typed)
    except Exception as error:
        # What is not accepted ends by SystemExit; anything else is a fault of ours, and no reason to end the job.
        log.warning(f"the command line could not be read ({error!r}), and goes to SpeechBrain as it was typed")
        result: Parsed = wrapped(argv)
        return result


def _parse(owner: Any, wrapped: Any, argv: List[str], typed: unknown.Typed) -> Parsed:
    arg_parser = parser.of(owner)
    known = {**{option.name: option for option in KNOWN}, **parser.options(arg_parser)}
    index = words.path_index(argv, known)
    if index is None or {"-h", "--help", "--"} & set(argv):
        result: Parsed = wrapped(argv)
        return result
    line = _line(arg_parser, known, argv, index)
    return _finished(line, wrapped([argv[index], *_canonical(line)]), typed)


def _line(arg_parser: argparse.ArgumentParser, known: Any, argv: Sequence[str], index: int) -> Line:
    tree = yaml_options.read(argv[index])
    items = words.assign(words.items(argv, index), known, () if tree is None else list(tree), arg_parser)
    line = Line(arg_parser, known, tree, items)
    for item in items:
        if item.option is not None:
            _note_value(line, item, item.option)
    for hook in list(BEFORE):
        hook(line)
    return line


def _note_value(line: Line, item: Item, option: Option) -> None:
    """Note what was typed for a run option, or end the run if that is no truth value and has to be one."""
    text = " ".join(item.texts)
    value: Any = text
    if option.kind == "flag":
        value = True if item.bare else parser.truth(text)
        if value is None:
            line.fail(f"--{option.name}={text}: accepted are {parser.ACCEPTED}")
    if line.user_values.get(option.name, value) != value:
        log.info(f"--{option.name} is given more than once: the last one counts, {value}")
    line.user_values[option.name] = value


def _canonical(line: Line) -> List[str]:
    """Return the run options as every release's parser takes them: in full, a flag only where true, no others."""
    argv: List[str] = []
    for item in line.items:
        if item.option is not None and item.option.real and item.option.kind != "flag":
            argv.append(f"--{item.option.name}" + ("" if item.value is None else f"={item.value}"))
            argv.extend(item.words)
    for name, option in line.options.items():
        if option.real and option.kind == "flag" and line.user_values.get(name):
            argv.append(f"--{name}" if option.bare else f"--{name}=True")
    return argv


def _finished(line: Line, result: Parsed, typed: unknown.Typed) -> Parsed:
    path, run_opts, _ = result
    line.values = dict(run_opts.items())
    line.typed = set(line.user_values)
    for name, value in line.user_values.items():
        line.values[name] = _value(line, name, value)
    overridden = [item for item in line.items if item.option is None]
    line.overrides = overrides_yaml.text(overridden, line.tree, line.arg_parser)
    for hook in list(AFTER):
        hook(line)
    line.overrides = _with_yaml_keys(line)
    typed.overrides = [item.name.split(".")[0] for item in overridden]
    typed.options = list(line.options)
    return path, _returned(line, run_opts), line.overrides


def _value(line: Line, name: str, user_value: Any) -> Any:
    """Return the release's value, except where it does not do what its own ``Brain`` expects."""
    option, value = line.options[name], line.values.get(name)
    if option.kind == "flag" or not option.real:
        return user_value
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
    overridden = set(run_opts.overridden_args) | (line.typed & known)
    return dataclasses.replace(run_opts, **changed, overridden_args=overridden)


def _with_yaml_keys(line: Line) -> str:
    """Return the overrides, with the run options that were typed and that the yaml has as well."""
    lines: List[Optional[str]] = [line.overrides or None]
    for name in sorted(line.typed):
        node, value = line.in_yaml(name), line.values.get(name, line.user_values.get(name))
        if line.tree is None or name not in line.tree or isinstance(node, Mapping):
            continue
        if not (isinstance(node, type(value)) and node == value):
            lines.append(overrides_yaml.dumped({name: value}).strip())
    return "\n".join(text for text in lines if text)
