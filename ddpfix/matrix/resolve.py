"""Decides what to do about every patch: a pure function of the matrix, the installed versions and the settings.

Nothing is imported and nothing is changed, so ``plan`` can show the decisions of an environment without torch.
"""

from __future__ import annotations

import contextlib
from typing import Callable, Container, Dict, FrozenSet, Iterable, List, Mapping, NamedTuple, Optional, Sequence

from packaging.version import Version

from ddpfix.matrix.detect import UNRECOGNISED
from ddpfix.matrix.model import Matrix, Patch, Row
from ddpfix.matrix.ranges import parsed
from ddpfix.settings.known import OBSERVING, TRAINING
from ddpfix.settings.reading import Settings, switch_name, wanted
from ddpfix.state import State

# Of a release that was not tested: what the fix relies on is as in one that was.
UNCHANGED = "unchanged there"
# It is not, and the fix is left out.
CHANGED = "changed"
# First numbers of versions from here on are those of years.
_YEARS = 1000


class Decision(NamedTuple):
    """What is to be done about one patch, with the reason in words.

    ``tested`` is False for a release that is none of those that were run. ``nearest`` is then the tested one that comes
    nearest, and ``how`` says by what it is applied all the same: :data:`UNCHANGED`, or forced.
    """

    patch: str
    toolkit: str
    version: Optional[str]
    action: State
    reason: str
    row: Optional[Row] = None
    tested: bool = True
    forced: bool = False
    nearest: str = ""
    how: str = ""


_Decider = Callable[..., Decision]


def resolve(matrix: Matrix, installed: Mapping[str, Optional[str]], settings: Settings) -> List[Decision]:
    """Return one decision a patch, in the matrix's order.

    Args:
        installed: version by toolkit name; None (or no entry) means that it is not installed.
    """
    decisions = {patch.id: decide(matrix, patch, installed, settings) for patch in matrix.patches.values()}
    return [settled(matrix, decision, decisions) for decision in decisions.values()]


def settled(matrix: Matrix, decision: Decision, others: Mapping[str, Decision]) -> Decision:
    """Return the decision, or off where a patch that this one needs is not applied.

    Args:
        others: decisions by patch, at least the ones that this one needs.
    """
    if decision.action != State.APPLY:
        return decision
    for need in matrix.patches[decision.patch].needs:
        other = others[need]
        if other.action != State.APPLY:
            reason = f"needs {need}, which is not applied here ({other.reason})"
            return decision._replace(action=State.OFF, reason=reason, row=None, tested=True, forced=False)
    return decision


def decide(matrix: Matrix, patch: Patch, installed: Mapping[str, Optional[str]], settings: Settings) -> Decision:
    """Return the decision about one patch (see :func:`resolve`)."""
    text = installed.get(patch.toolkit)

    def decision(action: State, reason: str, **more: object) -> Decision:
        return Decision(patch.id, patch.toolkit, text, action, reason, **more)  # type: ignore[arg-type]

    switched = settings.switched(patch.id)
    if text is None:
        return decision(State.ABSENT, f"{patch.toolkit} is not installed")
    if switched == "0":
        return decision(State.OFF, f"switched off by {settings.sources.get(patch.id, switch_name(patch.id))}")
    if not patch.default and switched is None:
        return decision(State.OFF, f"not asked for; {switch_name(patch.id)}=1 switches it on")
    if patch.setting is not None and patch.when and not wanted(patch.setting, settings[patch.setting], patch.when):
        return decision(State.OFF, f"{patch.setting} is {settings[patch.setting]!r}, not {' or '.join(patch.when)}")
    if text.startswith(UNRECOGNISED):
        what = text[len(UNRECOGNISED) :]
        known = f"{patch.toolkit}{what} is not a release that ddpfix knows: a fork, or another package of that name"
        return decision(State.SKIP, known)
    try:
        version = Version(text)
    except ValueError:
        return decision(State.SKIP, f"{patch.toolkit} has the version {text!r}, which is not a version number")
    row = _row(matrix, patch, version)
    if row is not None and row.status != "cured":
        return decision(State.NOT_AFFECTED if row.status == "not-affected" else State.NOT_CURED, row.why, row=row)
    # Builds of one release differ in the local part only (+cpu, +cu121); a nightly is another release.
    if row is not None and Version(version.public) in row.tested:
        return decision(State.APPLY, row.why, row=row)
    return _untested(decision, matrix, patch, version, row, settings)


def facts(
    ddpfix: str,
    imported: Container[str],
    settings: Settings,
    decisions: Sequence[Decision],
    failed: Container[str] = (),
) -> Dict[str, str]:
    """Return the facts that change the training of ranks, and must be equal where two of them have them.

    Args:
        ddpfix: its version.
        imported: the toolkits that this process uses; what is merely installed changes nothing.
        settings: in force.
        decisions: one a patch.
        failed: the patches that could not be applied.
    """
    found = {"ddpfix": ddpfix}
    found.update({f"DDPFIX_{name.upper()}": settings[name] for name in TRAINING})
    used = [d for d in decisions if d.toolkit in imported and d.patch not in OBSERVING]
    # As plain words: they are compared with those that came through the store, and shown beside them.
    found.update({d.patch: str(State.FAILED if d.patch in failed else d.action) for d in used})
    return found


def is_newer(matrix: Matrix, toolkit: str, version: Version) -> bool:
    """Return whether a version is newer than all releases of a toolkit that were tested."""
    newest = matrix.newest.get(toolkit)
    return newest is not None and parsed(version.public) > parsed(newest)


def newer(matrix: Matrix, installed: Mapping[str, Optional[str]]) -> FrozenSet[str]:
    """Return the toolkits of which a newer release is installed than all that were tested."""
    found = set()
    for toolkit, text in installed.items():
        with contextlib.suppress(ValueError):
            if text is not None and is_newer(matrix, toolkit, Version(text)):
                found.add(toolkit)
    return frozenset(found)


def _row(matrix: Matrix, patch: Patch, version: Version) -> Optional[Row]:
    """Return the row for a version: of a newer release than all that were tested, that of the newest one."""
    rows = matrix.rows_of(patch.id)
    if not is_newer(matrix, patch.toolkit, version):
        return next((row for row in rows if row.versions.holds(version)), None)
    newest = parsed(matrix.newest[patch.toolkit])
    return next((row for row in rows if row.versions.holds(newest)), None)


def _untested(
    decision: _Decider, matrix: Matrix, patch: Patch, version: Version, row: Optional[Row], settings: Settings
) -> Decision:
    """Return the decision about a release that was not tested; ``row`` is the one for it."""
    tested = {each: one for one in matrix.rows_of(patch.id) if one.status == "cured" for each in one.tested}
    is_off = settings["untested"] == "off"
    ahead = is_newer(matrix, patch.toolkit, version)
    if ahead and not is_same_major(parsed(matrix.newest[patch.toolkit]), version):
        row = None
    if not tested and row is not None and not is_off:
        # A fix that is being written: there is nothing to compare with.
        return decision(State.APPLY, row.why, row=row, tested=False, how="no release was")
    if not tested:
        return decision(State.SKIP, f"{patch.toolkit} {version} is in no row of the matrix")
    nearest = nearest_of(tested, version)
    here = f"{patch.toolkit} {version} was not tested (nearest: {nearest})"
    more: Dict[str, object] = {"tested": False, "nearest": str(nearest)}
    if settings.switched(patch.id) == "force":
        why = f"{here}: {switch_name(patch.id)}=force"
        return decision(State.APPLY, why, row=row or tested[nearest], forced=True, how="forced", **more)
    if row is None or is_off:
        left = "left unchanged by DDPFIX_UNTESTED=off" if is_off else "left unchanged"
        return decision(State.SKIP, f"{here}: {left}; {switch_name(patch.id)}=force applies it", nearest=str(nearest))
    return decision(State.APPLY, f"{here}: applied where the code is unchanged there", row=row, how=UNCHANGED, **more)


def is_same_major(known: Version, given: Version) -> bool:
    """Return whether two releases have one major number; years are none."""
    return known.release[0] == given.release[0] or min(known.release[0], given.release[0]) >= _YEARS


def nearest_of(tested: Iterable[Version], version: Version) -> Version:
    """Return the last tested version before this one, or the first one."""
    known = list(tested)
    return max((each for each in known if each <= version), default=min(known))
