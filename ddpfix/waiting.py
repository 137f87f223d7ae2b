"""Targets whose modules have not been imported yet, and which of them wait for a module (looked up at every import).

Others are held: they wait for the gate to open (:mod:`ddpfix.patching.gate`), and only then for their modules.
"""

from __future__ import annotations

import re
import sys
from typing import Dict, Iterable, List, Tuple

from ddpfix.matrix.model import Target
from ddpfix.matrix.resolve import Decision


class Armed:
    """A patch that waits for one of its targets."""

    def __init__(self, decision: Decision, target: Target) -> None:
        self.decision, self.target = decision, target

    @property
    def for_many(self) -> bool:
        """Whether it goes on waiting after one module of its pattern was imported."""
        return "*" in self.target.module


class Waiting:
    """All that is armed, in the order in which it was.

    Nearly every look-up is for a module that nothing waits for; it costs one look into a dictionary and one match for
    each of the few patterns.
    """

    def __init__(self) -> None:
        self._exact: Dict[str, List[Tuple[int, Armed]]] = {}
        self._patterns: List[Tuple[int, Armed, re.Pattern[str]]] = []
        self._count = 0
        self._held: List[Tuple[int, Armed]] = []
        self._stubs: Dict[str, Dict[Target, bool]] = {}

    def open_at(self, places: Iterable[Target]) -> None:
        """Functions whose first call opens the gate."""
        for target in places:
            self._stubs.setdefault(target.module, {})[target] = True

    def hold(self, patches: Iterable[Armed]) -> None:
        """Have these wait for the gate; other patchers may come to a class before it opens, so stubs keep the places.

        Functions of modules have none: others hold copies of them, and who is above whom does not matter there.
        """
        for each in patches:
            self._count += 1
            self._held.append((self._count, each))
            if not each.for_many and "." in each.target.attribute:
                same = self._stubs.setdefault(each.target.module, {})
                if all(other.attribute != each.target.attribute for other in same):
                    same[each.target] = False

    def stubs(self, toolkit: str) -> List[Tuple[Target, bool]]:
        """Return the functions that need a stub now, once: (function, whether its call opens the gate)."""
        if not self._held:
            return []
        ready = [name for name in self._stubs if name.partition(".")[0] == toolkit and name in sys.modules]
        return [entry for name in ready for entry in self._stubs.pop(name).items()]

    def release(self) -> List[Armed]:
        """Open the gate: what was held waits for its modules, in the order in which it was armed; return it."""
        held, self._held, self._stubs = self._held, [], {}
        for number, each in held:
            self._insert(number, each)
        return [each for _, each in held]

    def is_held(self, patch: str) -> bool:
        """Return whether nothing but the gate is between a patch and one of its targets."""
        held = [each.target.module for _, each in self._held if each.decision.patch == patch]
        return any((top(module) if "*" in module else module) in sys.modules for module in held)

    def add(self, patches: Iterable[Armed]) -> None:
        for each in patches:
            self._count += 1
            self._insert(self._count, each)

    def _insert(self, number: int, new: Armed) -> None:
        if new.for_many:
            self._patterns = [*self._patterns, (number, new, pattern(new.target.module))]
        else:
            self._exact.setdefault(new.target.module, []).append((number, new))

    def remove(self, done: Armed) -> None:
        name = done.target.module
        self._exact[name] = [entry for entry in self._exact[name] if entry[1] is not done]
        if not self._exact[name]:
            del self._exact[name]

    def clear(self) -> None:
        self._exact, self._patterns, self._held, self._stubs = {}, [], [], {}

    def any_for(self, name: str) -> bool:
        """Return whether anything waits for a module of this name."""
        return name in self._exact or name in self._stubs or any(found.match(name) for _, _, found in self._patterns)

    def of_module(self, name: str) -> List[Armed]:
        """Return the armed entries for a module of this name."""
        found = [*self._exact.get(name, ()), *((n, each) for n, each, one in self._patterns if one.match(name))]
        return [each for _, each in sorted(found, key=lambda entry: entry[0])]

    def has(self, patch: str) -> bool:
        """Return whether a patch waits for any of its targets."""
        exact = [each for entries in list(self._exact.values()) for _, each in entries]
        patterns = [each for _, each, _ in self._patterns]
        held = [each for _, each in self._held]
        return any(each.decision.patch == patch for each in [*exact, *patterns, *held])


def armed(decision: Decision) -> List[Armed]:
    """Return one entry for each target of a decision to apply a patch."""
    if decision.row is None:
        return []
    return [Armed(decision, target) for target in decision.row.targets]


def pattern(module: str) -> re.Pattern[str]:
    """Return a target's module name as a pattern: ``*`` stands for one part of the name or the rest of one."""
    return re.compile(re.escape(module).replace(r"\*", "[^.]*") + "$")


def top(name: str) -> str:
    """Return the package of a module."""
    return name.partition(".")[0]
