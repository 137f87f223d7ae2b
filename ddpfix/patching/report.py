"""What ddpfix did and why, as data: ``ddpfix.report()``."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Container, Dict, Iterator, List, Optional

from ddpfix.state import State

# The states in the order of a reader's interest, and what each means; a toolkit that is absent is named in one line.
_MEANINGS = {
    State.FAILED: "failed, and was undone",
    State.SKIP: "left out: this release was not tested",
    State.APPLIED: "in place",
    State.REGISTERED: "ready for the first model or process group",
    State.ARMED: "waits for its target to be imported",
    State.NOTHING_TO_DO: "imported, and nothing needed it",
    State.OFF: "not asked for",
    State.NOT_CURED: "not fixed in this release",
    State.NOT_AFFECTED: "this release does not need it",
}
_WIDTH, _LINES, _INDENT = 100, 2, " " * 6


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
    # For a release that was not tested: the tested one that comes nearest, and by what the fix is applied or left out.
    nearest: str = ""
    how: str = ""


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

    def __iter__(self) -> Iterator[PatchReport]:
        return iter(self.patches)

    def count(self, state: str) -> int:
        return sum(1 for patch in self.patches if patch.state == state)

    def patch(self, id: str) -> PatchReport:
        """Return the entry of one patch; raise KeyError for an unknown id."""
        for entry in self.patches:
            if entry.id == id:
                return entry
        raise KeyError(f"no patch {id!r}; known are {', '.join(p.id for p in self.patches)}")

    def summary(self, imported: Optional[Container[str]] = None) -> str:
        """Return one line: how many fixes are in use for which toolkits, and why others are not.

        Args:
            imported: names of modules; a toolkit that is not among them is not mentioned.
        """
        patches = [p for p in self.patches if imported is None or p.toolkit in imported]
        there = [p for p in patches if p.state in (State.APPLIED, State.REGISTERED)]
        toolkits = list(dict.fromkeys(f"{p.toolkit} {p.version}" for p in there))
        count = f"{len(there)} fix{'es' if len(there) != 1 else ''}"
        parts = [f"ddpfix {self.version}: {count} in use{' for ' if toolkits else ''}{', '.join(toolkits)}"]
        untested = Counter((f"{p.toolkit} {p.version}", p.how) for p in there if not p.tested)
        parts += [f"{count} not tested with {release} ({how})" for (release, how), count in untested.items()]
        skipped = Counter(p.how or p.reason.split(";")[0] for p in patches if p.state == State.SKIP)
        parts += [f"{count} left out ({why})" for why, count in sorted(skipped.items())]
        failed = [p for p in patches if p.state == State.FAILED]
        if failed:
            parts.append(f"{len(failed)} failed ({'; '.join(f'{p.id}: {p.reason}' for p in failed)})")
        return "; ".join(parts) + " (python -m ddpfix plan)"

    def __repr__(self) -> str:
        """Return a few lines, for a console or a cell of a notebook: what was applied, what was left, and why."""
        groups = {state: [p for p in self.patches if p.state == state] for state in _MEANINGS}
        title = f"ddpfix {self.version} is not active: import ddpfix.auto, or DDPFIX=1"
        lines = [_named(state, patches) for state, patches in groups.items() if patches]
        absent = ", ".join(dict.fromkeys(p.toolkit for p in self.patches if p.state == State.ABSENT))
        lines += [f"  not installed: {absent}"] if absent else []
        return "\n".join([self.summary() if self.active else title, *lines, *(f"  {note}" for note in self.notes)])


def _named(state: State, patches: List[PatchReport]) -> str:
    """Return how many patches are in a state, what that means, and their names as far as there is room."""
    head = f"  {len(patches)} {state}: {_MEANINGS[state]}"
    names = [patch.id for patch in patches]
    lines = textwrap.wrap(", ".join(names), _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
    shown = "\n".join(lines[:_LINES])
    left = len(names) - len(shown.split())
    return f"{head}\n{shown}" + (f" and {left} more" if left else "")


def made(engine: Any, version: str) -> Report:
    """Return the report of an activation.

    Args:
        engine: of the activation.
        version: of ddpfix.
    """
    entries = [
        PatchReport(
            id=decision.patch,
            toolkit=decision.toolkit,
            version=decision.version,
            state=_state(engine, decision),
            reason=engine.failed.get(decision.patch) or engine.left_out.get(decision.patch, (decision.reason,))[0],
            tested=decision.tested,
            places=_places(engine, decision.patch),
            nearest=decision.nearest,
            how=engine.left_out.get(decision.patch, (decision.how,))[-1],
        )
        for decision in engine.decisions
    ]
    return Report(version, True, dict(engine.toolkits), dict(engine.settings.values), entries, list(engine.notes))


def _state(engine: Any, decision: Any) -> State:
    if decision.patch in engine.failed:
        return State.FAILED
    if decision.patch in engine.left_out:
        return State.SKIP
    if decision.action != State.APPLY:
        return State(decision.action)
    if decision.patch in engine.places:
        return State.APPLIED
    own = engine.sites.get(decision.patch)
    if _is_held(engine, decision.patch) or (own is not None and own.registered):
        return State.REGISTERED
    return State.ARMED if engine.waiting.has(decision.patch) else State.NOTHING_TO_DO


def _is_held(engine: Any, patch: str) -> bool:
    """Return whether a patch is put in place as soon as the gate opens."""
    return not engine.gate.is_open and bool(engine.waiting.is_held(patch))


def _places(engine: Any, patch: str) -> List[str]:
    """Return the places of a patch; for one that is registered only, those where it will act."""
    if patch not in engine.places and _is_held(engine, patch):
        return [str(target) for target in engine.matrix.gate]
    if patch in engine.places or patch not in engine.sites:
        return list(engine.places.get(patch, []))
    return list(dict.fromkeys(engine.sites[patch].registered))
