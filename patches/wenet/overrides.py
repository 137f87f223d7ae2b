"""``--override_config`` and flags: what is typed takes effect, or the run ends with the accepted forms.

WeNet takes ``"key value"`` only: ``key=value`` and values with spaces are skipped with a line in the log, every word
but true and True is False, a key that the YAML lacks is a KeyError and one whose value is null a TypeError.
"""

from __future__ import annotations

import argparse
import copy
import difflib
import re
from types import ModuleType
from typing import Any, Dict, List

import yaml

from ddpfix import log
from ddpfix.patching.site import Site

# The key, and the value behind a space, an equals sign, or a colon with a space.
_ITEM = re.compile(r"^\s*(?P<key>[^\s=]*[^\s=:])(?:\s*=\s*|:?\s+)(?P<value>\S.*?)\s*$", re.DOTALL)
_ACCEPTED = 'Write "a.b value" or "a.b=value"'
_TRUTHS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


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
    section: Any = configs
    *parts, last = name.split(".")
    for index, part in enumerate(parts):
        key = _key(configs, section, part, name)
        if section.get(key) is None:
            section[key] = {}
        section = section[key]
        if not isinstance(section, dict):
            raise ValueError(f"{'.'.join(parts[: index + 1])} is {section!r} and has no keys. {_ACCEPTED}")
    key = _key(configs, section, last, name)
    if key not in section:
        section[key] = _value(text)
        log.setting(name, text, section[key], "is not in the YAML")
        log.info(f"override_config: added {name}, which the YAML does not have, as {section[key]!r}")
        return
    old = section[key]
    section[key] = _like(old, text, name)
    log.setting(name, text, section[key], f"was {old!r}")
    log.info(f"override_config: set {name} to {section[key]!r} (was {old!r})")


def _key(configs: Dict[str, Any], section: Dict[Any, Any], part: str, name: str) -> Any:
    """Return the key that a part of a name stands for (not every key of a YAML file is a text), or the part itself.

    A key that looks like a slip is an error: a setting that is added beside the intended one gets lost.
    """
    found = [key for key in section if str(key) == part]
    near = difflib.get_close_matches(part, [str(key) for key in section], n=1, cutoff=0.9)
    elsewhere = [f"{key}.{name}" for key, value in configs.items() if isinstance(value, dict) and name in value]
    if not found and (near or elsewhere):
        meant = [re.sub(rf"\b{re.escape(part)}\b", word, name, count=1) for word in near] or elsewhere
        raise ValueError(f"the YAML has no {name}. Did you mean {' or '.join(meant)}? {_ACCEPTED}")
    return found[0] if found else part


def _like(old: Any, text: str, name: str) -> Any:
    """Return the value that ``text`` means where ``old`` stood; ValueError says which ones are accepted."""
    value = _value(text)
    if value is None:
        return None
    if isinstance(old, dict):
        raise ValueError(f"{name} is a section. Set one of its keys: {', '.join(f'{name}.{key}' for key in old)}")
    if isinstance(old, bool):
        if text.lower() not in _TRUTHS:
            raise ValueError(
                f"{name} is {old}, and {text!r} is neither true nor false. Use one of {', '.join(_TRUTHS)}"
            )
        return _TRUTHS[text.lower()]
    if isinstance(old, (int, float)):
        try:
            number = float(text)
            if isinstance(old, float):
                return number
            # Of an integer that is written as one, every digit counts.
            whole = int(text) if text.lstrip("+-").isdigit() else int(number)
        except (ValueError, OverflowError):
            kind = "an integer" if isinstance(old, int) else "a number"
            raise ValueError(f"{name} is {old}, and {text!r} is not {kind} (or null)") from None
        if whole == number:
            return whole
        log.warning(f"override_config: {name} changes from the integer {old} to {number}")
        return number
    if isinstance(old, (list, tuple)):
        words = [word.strip().strip("'\"") for word in text.strip("[]").split(",") if word.strip()]
        texts = old and all(isinstance(item, str) for item in old)
        return type(old)(words if texts else value if isinstance(value, list) else map(_value, words))
    return text.strip("'\"") if isinstance(old, str) else value


def _value(text: str) -> Any:
    """Return a value of which nothing is known, as YAML reads it, and numbers like 1e-4 as numbers."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return _number(value) if not isinstance(value, list) else [_number(item) for item in value]


def _number(value: Any) -> Any:
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def flags(site: Site, module: ModuleType, owner: Any) -> None:
    """Options of true and false: of ``--use_lora False`` argparse makes ``bool("False")``, which is True."""
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
    if text and text.lower() not in _TRUTHS:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false. Use one of {', '.join(_TRUTHS)}")
    return bool(text) and _TRUTHS[text.lower()]
