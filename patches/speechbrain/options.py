"""Run options: which of them their user gave, and where; on every release.

Before 1.1.0 the parser returns a full dict in which a default looks like something typed, so that a yaml value has no
chance (speechbrain issue 2340: ``find_unused_parameters: True`` in the yaml was ignored). From 1.1.0 ``RunOptions``
keeps the names of what was typed in ``overridden_args``.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any, Dict, FrozenSet, Iterable, Mapping, Optional, Tuple

Given = Tuple[bool, Any]
NOTHING: Given = (False, None)


class Options(Dict[str, Any]):
    """The parser's dict before 1.1.0, which also knows what was typed; an item that code sets later counts as typed.

    Attributes:
        typed: names that the user typed on the command line, or that code of his set afterwards.
        of_yaml: names whose value is that of the yaml.
    """

    typed: FrozenSet[str] = frozenset()
    of_yaml: FrozenSet[str] = frozenset()

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self.typed = self.typed | {name}

    def update(self, *others: Any, **more: Any) -> None:
        for name, value in dict(*others, **more).items():
            self[name] = value

    def copy(self) -> Options:
        return made(self, self.typed, self.of_yaml)

    def __reduce__(self) -> Any:
        return made, (dict(self), self.typed, self.of_yaml)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()


def made(values: Mapping[str, Any], typed: Iterable[str], of_yaml: Iterable[str] = ()) -> Options:
    """Options with these values, of which those names were typed, and those others come from the yaml."""
    options = Options(values)
    options.typed, options.of_yaml = frozenset(typed), frozenset(of_yaml)
    return options


def user_value(run_opts: Any, hparams: Any, name: str) -> Tuple[bool, Any]:
    """Return the user's value of a run option: typed, in the yaml, or in run options of his own making.

    A null in the yaml is nothing given; a quoted "True" or "False" there is what it means.

    Args:
        run_opts: what ``Brain`` got: a dict, ``RunOptions``, or None.
        hparams: what ``Brain`` got, or ``brain.hparams``: a mapping, a namespace, or None.
        name: the option's name.

    Returns:
        (True, value), or (False, None) where he gave none.
    """
    if name in typed(run_opts):
        return True, run_opts[name]
    given, value = _of(hparams, name)
    if given:
        return True, value
    if name in getattr(run_opts, "of_yaml", ()):
        return True, run_opts[name]
    return NOTHING


def typed(run_opts: Any) -> FrozenSet[str]:
    """Return the names in run options that beat the yaml.

    All of a dict that is not the parser's. In the parser's own, where nobody noted what was typed: what
    differs from its defaults.
    """
    if isinstance(run_opts, Options):
        return run_opts.typed & frozenset(run_opts)
    if hasattr(run_opts, "overridden_args"):
        return frozenset(run_opts.overridden_args)
    if not isinstance(run_opts, Mapping):
        return frozenset()
    default = defaults()
    if not default or not default.keys() <= run_opts.keys():
        return frozenset(run_opts)
    return frozenset(name for name, value in run_opts.items() if name not in default or value != default[name])


def defaults() -> Dict[str, Any]:
    """Return the parser's own result where nothing is typed; empty where it notes what is typed (1.1.0)."""
    parse: Optional[Any] = getattr(sys.modules.get("speechbrain.core"), "parse_arguments", None)
    if parse is None:
        return {}
    # The device among them is that of this process's rank, as in the dict it is compared with.
    return dict(inspect.unwrap(parse)(["hyperparams.yaml"])[1])


def _of(hparams: Any, name: str) -> Given:
    value = hparams.get(name) if isinstance(hparams, Mapping) else getattr(hparams, name, None)
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower(), value)
    return NOTHING if value is None else (True, value)
