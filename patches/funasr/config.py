"""Small helpers for FunASR's configuration: plain copies, deep merges, and truth values that arrive as text."""

from __future__ import annotations

from typing import Any, Dict, Iterator, Mapping, Optional, Tuple


def plain(value: Any) -> Any:
    """Return a container of OmegaConf as dicts and lists, which take new keys (hydra's does not); others unchanged."""
    from omegaconf import Container, OmegaConf

    return OmegaConf.to_container(value, resolve=True) if isinstance(value, Container) else value


def section(config: Mapping[str, Any], name: str) -> Dict[str, Any]:
    """Return a copy of the section ``name`` (``train_conf``, ...) as a plain dict; empty where there is none."""
    value = plain(config.get(name))
    return dict(value) if isinstance(value, dict) else {}


def merged(below: Any, above: Any) -> Any:
    """``below`` overridden by ``above``; dicts are merged, other values replaced. Changes neither."""
    below, above = plain(below), plain(above)
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    both = {key: merged(below[key], value) if key in below else value for key, value in above.items()}
    return {**below, **both}


def leaves(config: Any, prefix: str = "") -> Iterator[Tuple[str, Any]]:
    """(dotted key, value) of everything that is not a dict."""
    for key, value in plain(config).items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def truth(value: Any, key: str) -> Optional[bool]:
    """True, False, or None where nothing is set; a quoted "false" means what it says. ValueError: none of these."""
    if value is None:
        return None
    known = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
    word = str(value).strip().strip("'\"").lower()
    if word not in known:
        raise ValueError(f"{key}={value!r}: accepted are true and false (and 1, 0)")
    return known[word]
