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
        self._held: List[Armed] = []

    def hold(self, patches: Iterable[Armed]) -> None:
        """Have these wait for the gate, in front of all else."""
        self._held.extend(patches)

    def release(self) -> bool:
        """The gate is open: what was held waits for its modules; returns whether anything was."""
        held, self._held = self._held, []
        self.add(held)
        return bool(held)

    def is_held(self, patch: str) -> bool:
        """Whether nothing but the gate is between a patch and one of its targets."""
        held = [armed.target.module for armed in self._held if armed.decision.patch == patch]
        return any("*" in module or module in sys.modules for module in held)

    def add(self, patches: Iterable[Armed]) -> None:
        for armed in patches:
            self._count += 1
            if armed.for_many:
                self._patterns = [*self._patterns, (self._count, armed, pattern(armed.target.module))]
            else:
                self._exact.setdefault(armed.target.module, []).append((self._count, armed))

    def remove(self, armed: Armed) -> None:
        name = armed.target.module
        self._exact[name] = [entry for entry in self._exact[name] if entry[1] is not armed]
        if not self._exact[name]:
            del self._exact[name]

    def clear(self) -> None:
        self._exact, self._patterns, self._held = {}, [], []

    def any_for(self, name: str) -> bool:
        """Whether anything waits for a module of this name."""
        return name in self._exact or any(found.match(name) for _, _, found in self._patterns)

    def of_module(self, name: str) -> List[Armed]:
        """What waits for a module of this name."""
        found = [*self._exact.get(name, ()), *((n, armed) for n, armed, one in self._patterns if one.match(name))]
        return [armed for _, armed in sorted(found, key=lambda entry: entry[0])]

    def has(self, patch: str) -> bool:
        """Whether a patch waits for any of its targets."""
        exact = [armed for entries in list(self._exact.values()) for _, armed in entries]
        patterns = [armed for _, armed, _ in self._patterns]
        return any(armed.decision.patch == patch for armed in [*exact, *patterns, *self._held])


def pattern(module: str) -> re.Pattern[str]:
    """A target's module name as a pattern: ``*`` stands for one part of the name or the rest of one."""
    return re.compile(re.escape(module).replace(r"\*", "[^.]*") + "$")
