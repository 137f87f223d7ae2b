"""What ddpfix did and why, as data: ``ddpfix.report()``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Dict, List, Optional

from ddpfix.state import State


@dataclass
class PatchReport:
    """One patch.

    ``state`` is what has become of a decision to apply it, or the decision: see :class:`~ddpfix.state.State`.
    """

    id: str
    toolkit: str
    version: Optional[str]
    state: str
    reason: str
    tested: bool
    places: List[str] = field(default_factory=list)
    # The tested release that comes nearest, where this one is in no row of the matrix.
    nearest: str = ""


@dataclass
class Report:
    """The whole report: versions of the toolkits, settings in force, one entry a patch, and later notes."""

    version: str
    active: bool
    toolkits: Dict[str, Optional[str]] = field(default_factory=dict)
    settings: Dict[str, str] = field(default_factory=dict)
    patches: List[PatchReport] = field(default_factory=list)
    notes: List[str] = field(default_factory=list)

    def json(self, indent: Optional[int] = 2) -> str:
        return json.dumps(asdict(self), indent=indent)

    def count(self, state: str) -> int:
        return sum(1 for patch in self.patches if patch.state == state)

    def patch(self, id: str) -> PatchReport:
        """Return the entry of one patch; raise KeyError for an unknown id."""
        for entry in self.patches:
            if entry.id == id:
                return entry
        raise KeyError(f"no patch {id!r}; known are {', '.join(p.id for p in self.patches)}")

    def summary(self) -> str:
        """Return one line: how many fixes are in place for what, and why others are not."""
        there = [p for p in self.patches if p.state in (State.APPLIED, State.REGISTERED)]
        toolkits = list(dict.fromkeys(f"{p.toolkit} {p.version}" for p in there))
        count = f"{len(there)} fix{'es' if len(there) != 1 else ''}"
        parts = [f"ddpfix {self.version}: {count} ready{' for ' if toolkits else ''}{', '.join(toolkits)}"]
        skipped = [p for p in self.patches if p.state == State.SKIP]
        if skipped:
            reasons = "; ".join(sorted({p.reason.split(";")[0] for p in skipped}))
            parts.append(f"{len(skipped)} left out ({reasons})")
        failed = [p for p in self.patches if p.state == State.FAILED]
        if failed:
            parts.append(f"{len(failed)} failed ({'; '.join(f'{p.id}: {p.reason}' for p in failed)})")
        untested = [p for p in there if not p.tested]
        if untested:
            parts.append("untested: " + ", ".join(sorted({f"{p.toolkit} {p.version}" for p in untested})))
        return "; ".join(parts) + " (python -m ddpfix plan)"
