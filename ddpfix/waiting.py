"""Targets whose modules have not been imported yet, and which of them wait for a module (looked up at every import)."""

from __future__ import annotations

import re
import sys
from typing import Dict, Iterator, List, Tuple

from ddpfix.matrix.model import Target
from ddpfix.matrix.resolve import Decision


class Armed:
    """A patch that waits for one of its targets; a gated one for the gate to open as well."""

    def __init__(self, decision: Decision, target: Target, is_gated: bool) -> None:
        self.decision, self.target, self.is_gated = decision, target, is_gated
        # Whether it goes on waiting after one module of its pattern was imported.
        self.for_many = "*" in target.module


class Waiting:
    """All that is armed, in the order in which it was.

    Nearly every look-up is for a module that nothing waits for; it costs one look into a dictionary and one match for
    each of the few patterns.
    """

    def __init__(self) -> None:
        self._exact: Dict[str, List[Tuple[int, Armed]]] = {}
        self._patterns: List[Tuple[int, Armed, re.Pattern[str]]] = []
        self._count = 0

    def arm(self, decision: Decision, is_gated: bool) -> None:
        """Have a decision to apply a patch wait for each of its targets."""
        for target in () if decision.row is None else decision.row.targets:
            self._count += 1
            new = Armed(decision, target, is_gated)
            if new.for_many:
                self._patterns = [*self._patterns, (self._count, new, pattern(target.module))]
            else:
                self._exact.setdefault(target.module, []).append((self._count, new))

    def remove(self, done: Armed) -> None:
        name = done.target.module
        self._exact[name] = [entry for entry in self._exact[name] if entry[1] is not done]
        if not self._exact[name]:
            del self._exact[name]

    def clear(self) -> None:
        self._exact, self._patterns = {}, []

    def any_for(self, name: str) -> bool:
        """Return whether anything waits for a module of this name."""
        return name in self._exact or any(found.match(name) for _, _, found in self._patterns)

    def of_module(self, name: str) -> List[Armed]:
        """Return the armed entries for a module of this name."""
        found = [*self._exact.get(name, ()), *((n, each) for n, each, one in self._patterns if one.match(name))]
        return [each for _, each in sorted(found, key=lambda entry: entry[0])]

    def __iter__(self) -> Iterator[Armed]:
        return iter(
            [
                *(each for entries in list(self._exact.values()) for _, each in entries),
                *(each for _, each, _ in self._patterns),
            ]
        )

    def has(self, patch: str) -> bool:
        """Return whether a patch waits for any of its targets."""
        return any(each.decision.patch == patch for each in self)

    def is_held(self, patch: str) -> bool:
        """Return whether nothing but a gate that is shut is between a patch and one of its targets."""
        held = [each for each in self if each.is_gated and each.decision.patch == patch]
        return any((top(each.target.module) if each.for_many else each.target.module) in sys.modules for each in held)


def pattern(module: str) -> re.Pattern[str]:
    """Return a target's module name as a pattern: ``*`` stands for one part of the name or the rest of one."""
    return re.compile(re.escape(module).replace(r"\*", "[^.]*") + "$")


def top(name: str) -> str:
    """Return the package of a module."""
    return name.partition(".")[0]
