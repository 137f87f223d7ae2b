"""Run options: which of them their user gave, and where; on every release.

Before 1.1.0 the parser returns a full dict in which a default looks like something typed, so that a yaml value has no
chance (speechbrain issue 2340: ``find_unused_parameters: True`` in the yaml was ignored). From 1.1.0 ``RunOptions``
keeps the names of what was typed in ``overridden_args``.
"""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, Mapping, Tuple

Given = Tuple[bool, Any]


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
