"""Decides what to do about every patch: a pure function of the matrix, the installed versions and the settings.

Nothing is imported and nothing is changed, so ``plan`` can show the decisions of an environment without torch.
"""

from __future__ import annotations

from typing import Callable, Container, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from packaging.version import Version

from ddpfix.matrix.detect import UNRECOGNISED
from ddpfix.matrix.model import Matrix, Patch, Row
from ddpfix.matrix.settings import Settings, switch_name, wanted
from ddpfix.state import State

# Settings that change what is trained; a rank may have the others for itself.
_TRAINING = (
    "unused",
    "layerdrop",
    "overrides",
    "untested",
    "uneven",
    "memory",
    "seed",
    "bypass",
)
# Patches that change nothing of what is trained, and are no fact either.
_OBSERVING = frozenset(
    f"torch.{name}" for name in ("diagnosis", "divergence", "failures", "hang", "probe", "init_file")
) | {"torch.trace", "fastnlp.cause", "fastnlp.logs", "wenet.failures"}


class Decision(NamedTuple):
    """What is to be done about one patch, with the reason in words.

    ``tested`` is False when the version lies inside the row's range but is none of the versions that were run, or in no
    range; then ``nearest`` is the tested one that comes nearest. ``by_look``: it is applied where the places look as in
    a tested release, and nowhere else.
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
    by_look: bool = False


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
        known = f"{patch.toolkit}{what} is no release that ddpfix knows: a fork, or another package so called"
        return decision(State.SKIP, known)
    try:
        version = Version(text)
    except ValueError:
        return decision(State.SKIP, f"{patch.toolkit} says its version is {text!r}, which is none")
    rows = matrix.rows_of(patch.id)
    row = next((row for row in rows if row.versions.holds(version)), None)
    if row is None:
        return _outside(decision, patch, rows, version, "force" if switched == "force" else settings["untested"])
    if row.status != "cured":
        return decision(State.NOT_AFFECTED if row.status == "not-affected" else State.NOT_CURED, row.why, row=row)
    return decision(State.APPLY, row.why, row=row, tested=_is_tested(row, version))


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
    found.update({f"DDPFIX_{name.upper()}": settings[name] for name in _TRAINING})
    used = [d for d in decisions if d.toolkit in imported and d.patch not in _OBSERVING]
    # As plain words: they are compared with those that came through the store, and shown beside them.
    found.update({d.patch: str(State.FAILED if d.patch in failed else d.action) for d in used})
    return found


def _outside(decision: _Decider, patch: Patch, rows: Sequence[Row], version: Version, wish: str) -> Decision:
    """Return the decision about a version that is in no row; ``wish`` is force, apply or leave."""
    here = f"{patch.toolkit} {version}"
    tested = [(tested, row) for row in rows if row.status == "cured" for tested in row.tested]
    if not tested:
        return decision(State.SKIP, f"{here} is in no row of the matrix")
    nearest, row = _nearest(tested, version)
    more: Dict[str, object] = {"tested": False, "nearest": str(nearest)}
    if wish == "force":
        return decision(State.APPLY, f"forced for {here}; nearest tested is {nearest}", row=row, forced=True, **more)
    last = max(rows, key=lambda row: Version(row.versions.end))
    # What the last release no longer needed, or what was never cured in it, is no matter of how a place looks.
    is_newer = last.status == "cured" and version >= Version(last.versions.end)
    if wish == "apply" and is_newer:
        why = f"DDPFIX_UNTESTED=apply: {here} is newer than {nearest}, as which its places have to look"
        return decision(State.APPLY, why, row=last, by_look=True, **more)
    way = f"; {switch_name(patch.id)}=force applies it"
    return decision(State.SKIP, f"{here}: untested, nearest {nearest}{way}", nearest=str(nearest))


def _is_tested(row: Row, version: Version) -> bool:
    # Builds of one release differ in the local part only (+cpu, +cu121); a nightly is another release.
    return Version(version.public) in row.tested


def _nearest(tested: Sequence[Tuple[Version, Row]], version: Version) -> Tuple[Version, Row]:
    """Return the closer one of the last tested version before ``version`` and the first one after it."""
    before = [pair for pair in tested if pair[0] <= version]
    after = [pair for pair in tested if pair[0] > version]
    neighbours = [max(before, key=_release)] if before else []
    neighbours += [min(after, key=_release)] if after else []
    return min(neighbours, key=lambda pair: distance(pair[0], version))


def _release(pair: Tuple[Version, Row]) -> Version:
    return pair[0]


def distance(one: Version, other: Version) -> float:
    """Return how far apart two versions are; the major number weighs most."""
    parts = zip([*one.release, 0, 0, 0][:3], [*other.release, 0, 0, 0][:3])
    return abs(sum((a - b) * weight for (a, b), weight in zip(parts, (1e6, 1e3, 1.0))))
