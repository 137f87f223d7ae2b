"""``--override_config`` and flags: what is typed takes effect, or the run ends with the accepted forms.

WeNet takes ``"key value"`` only: ``key=value`` and values with spaces are skipped with a line in the log, every word
but true and True is False, a key that the YAML lacks is a KeyError and one whose value is null a TypeError. Of
``--use_lora False`` argparse makes ``bool("False")``, which is True.
"""

from __future__ import annotations

import argparse
import copy
import difflib
import re
from types import ModuleType
from typing import Any, Dict, Iterator, List, Optional, Tuple

import yaml

from ddpfix import log
from ddpfix.patching.site import Site

# The key, and the value behind a space, an equals sign, or a colon with a space.
_ITEM = re.compile(r"^\s*(?P<new>\+?)(?P<key>[^\s=]*[^\s=:])(?:\s*=\s*|:?\s+)(?P<value>\S.*?)\s*$", re.DOTALL)
_ACCEPTED = 'Write "a.b value" or "a.b=value"; "+a.b value" adds a key that the YAML does not have'
_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")
_NULL = ("null", "~")
_TRUTHS = ", ".join([*_TRUE, *_FALSE])


def read(site: Site, module: ModuleType, owner: Any) -> None:
    """Replace the function that train.py takes by name from this module."""
    site.wrap(module, "override_config", _override)


def _override(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Dict[str, Any]:
    return _overridden(*args, **kwargs)


def _overridden(configs: Dict[str, Any], override_list: List[str]) -> Dict[str, Any]:
    new_configs = copy.deepcopy(configs)
    for item in override_list:
        try:
            _apply(new_configs, item)
        except ValueError as error:
            raise ValueError(f"--override_config {item!r}: {error}") from None
    return new_configs


def _apply(configs: Dict[str, Any], item: str) -> None:
    match = _ITEM.match(item)
    if match is None:
        raise ValueError(f"no key and value. {_ACCEPTED}")
    name, text = match["key"], match["value"]
    section, last, missing = _place(configs, name)
    if not missing:
        old = section[last]
        section[last] = _like(old, text, name)
        log.setting(name, text, section[last], f"was {old!r}")
        log.info(f"override_config: set {name} to {section[last]!r} (was {old!r})")
        return
    if not match["new"]:
        _refuse_slips(configs, section, name, missing)
    for part in missing[:-1]:
        section[part] = {}
        section = section[part]
    section[missing[-1]] = _value(text)
    log.setting(name, text, section[missing[-1]], "is not in the YAML")
    log.info(f"override_config: added {name}, which the YAML does not have, as {section[missing[-1]]!r}")


def _place(configs: Any, name: str) -> Tuple[Any, Any, List[str]]:
    """(section, key in it, parts that are missing) of a dotted name; ValueError: it leads through no section."""
    section, parts = configs, name.split(".")
    for index, part in enumerate(parts):
        key = _key(section, part, ".".join(parts[:index]))
        if key is None:
            return section, None, parts[index:]
        if index == len(parts) - 1:
            return section, key, []
        if section[key] is None:
            section[key] = {}
        section = section[key]
    raise AssertionError(name)


def _key(section: Any, part: str, so_far: str) -> Any:
    """Return the key that a part of a name stands for: not every key of a YAML file is a text."""
    if isinstance(section, list):
        if part.lstrip("-").isdigit() and -len(section) <= int(part) < len(section):
            return int(part)
        raise ValueError(f"{so_far} has {len(section)} entries, and {part!r} is not an index of it")
    if not isinstance(section, dict):
        raise ValueError(f"{so_far} is {section!r} and has no keys. {_ACCEPTED}")
    return next((key for key in section if key == part or str(key) == part), None)


def _refuse_slips(configs: Dict[str, Any], section: Dict[str, Any], name: str, missing: List[str]) -> None:
    """A key that looks like a slip is an error: a setting that is added beside the intended one gets lost."""
    end = ".".join(missing)
    start = name[: len(name) - len(end)]
    elsewhere = [path for path in _paths(configs) if path.startswith(start) and path.endswith("." + end)]
    near = difflib.get_close_matches(missing[0], [str(key) for key in section], cutoff=0.9)
    suggestions = elsewhere or [start + ".".join([word, *missing[1:]]) for word in near]
    if suggestions:
        raise ValueError(f"the YAML has no {name}. Did you mean {' or '.join(suggestions)}? {_ACCEPTED}")


def _paths(section: Any, prefix: str = "") -> Iterator[str]:
    for key, value in section.items() if isinstance(section, dict) else ():
        yield f"{prefix}{key}"
        yield from _paths(value, f"{prefix}{key}.")


def _truth(text: str) -> Optional[bool]:
    """Return the truth of a word, in capitals or not; None if it has none."""
    word = text.strip().lower()
    return word in _TRUE if word in _TRUE + _FALSE else None


def _like(old: Any, text: str, name: str) -> Any:
    """Return the value that ``text`` means where ``old`` stood; ValueError says which ones are accepted."""
    if text.lower() in _NULL:
        return None
    if isinstance(old, dict):
        raise ValueError(f"{name} is a section. Set one of its keys: {', '.join(f'{name}.{key}' for key in old)}")
    if isinstance(old, bool):
        value = _truth(text)
        if value is None:
            raise ValueError(f"{name} is {old}, and {text!r} is neither true nor false. Use one of {_TRUTHS}")
        return value
    if isinstance(old, (int, float)):
        return _number(old, text, name)
    if isinstance(old, (list, tuple)):
        return type(old)(_items(list(old), text))
    return _unquoted(text) if isinstance(old, str) else _value(text)


def _value(text: str) -> Any:
    """Return a value of which nothing is known, as YAML reads it, and numbers like 1e-4 as numbers."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    if isinstance(value, str):
        for number in (int, float):
            try:
                return number(value)
            except ValueError:
                continue
    return value


def _number(old: Any, text: str, name: str) -> Any:
    try:
        if isinstance(old, int) and text.lstrip("+-").isdigit():
            return int(text)
        value = float(text)
        if isinstance(old, float):
            return value
        whole = int(value)
    except (ValueError, OverflowError):
        kind = "an integer" if isinstance(old, int) else "a number"
        raise ValueError(f"{name} is {old}, and {text!r} is not {kind} (or null)") from None
    if whole == value:
        return whole
    log.warning(f"override_config: {name} changes from the integer {old} to {value}")
    return value


def _items(old: List[Any], text: str) -> List[Any]:
    """``[zh, en]``, ``zh,en`` or ``zh``; each item is of the kind of the old ones."""
    text = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if "[" in text or "{" in text:
        items = yaml.safe_load(f"[{text}]")
        return list(items)
    words = [_unquoted(word.strip()) for word in text.split(",") if word.strip()]
    return words if old and all(isinstance(item, str) for item in old) else [_value(word) for word in words]


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def flags(site: Site, module: ModuleType, owner: Any) -> None:
    """The target's last name is a function that adds options to a parser and returns it."""
    for name in ("add_lora_args", "add_fsdp_args"):
        site.wrap(module, name, _added)


def _added(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    parser = wrapped(*args, **kwargs)
    for action in parser._actions:
        if action.type is bool:
            action.type = _flag
    return parser


def _flag(text: str) -> bool:
    """Return the truth of a text; an empty one stays what it was, False."""
    value = _truth(text) if text else False
    if value is None:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false. Use one of {_TRUTHS}")
    return value
