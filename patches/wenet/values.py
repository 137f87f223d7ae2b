"""The value of a command-line text that replaces a value of a YAML file."""

from __future__ import annotations

from typing import Any, List, Optional

import yaml

from ddpfix import log

_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")
_NULL = ("null", "~")
TRUTHS = ", ".join([*_TRUE, *_FALSE])


def truth(text: str) -> Optional[bool]:
    """Return the truth of a word, in capitals or not; None if it has none."""
    word = text.strip().lower()
    return word in _TRUE if word in _TRUE + _FALSE else None


def like(old: Any, text: str, name: str) -> Any:
    """Return the value that ``text`` means where ``old`` stood; ValueError says which ones are accepted."""
    if text.lower() in _NULL:
        return None
    if isinstance(old, dict):
        raise ValueError(f"{name} is a section. Set one of its keys: {', '.join(f'{name}.{key}' for key in old)}")
    if isinstance(old, bool):
        value = truth(text)
        if value is None:
            raise ValueError(f"{name} is {old}, and {text!r} is neither true nor false. Use one of {TRUTHS}")
        return value
    if isinstance(old, (int, float)):
        return _number(old, text, name)
    if isinstance(old, (list, tuple)):
        return type(old)(_items(list(old), text))
    return _unquoted(text) if isinstance(old, str) else read(text)


def read(text: str) -> Any:
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
    return words if old and all(isinstance(item, str) for item in old) else [read(word) for word in words]


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
