"""What the rule for untested releases would have done at each tested one: ``python -m tests.releases backtest``.

Of two tested releases that follow each other the older one plays the newest known, and the other one the release that
nobody has tested. The rule applies a fix where what it relies on is unchanged; the matrix knows whether that was right.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from packaging.version import Version

from ddpfix.matrix.compiling.reader import CURED
from ddpfix.matrix.model import Matrix, Patch, Row
from ddpfix.matrix.resolve import is_same_major
from ddpfix.patching import unchanged
from tests.releases import hashes
from tests.releases.code import Code, Tree

KEPT = Path(__file__).with_name("backtest.json")
RIGHT, WRONG = "applied and right", "applied and wrong"
HELD, LEFT = "left out, would have held", "left out rightly"
OUTCOMES = (RIGHT, WRONG, HELD, LEFT)


class Verdict(NamedTuple):
    """What the rule does with one fix on the day of a release."""

    patch: str  # the fix
    known: str  # the newest tested release of that day
    release: str  # the one that was new
    outcome: str  # one of the four
    why: str  # the first place that has changed, or the row that is for the new release


def of(matrix: Matrix, package: str, versions: Sequence[Version], read: Callable[[Version], Tree]) -> List[Verdict]:
    """The verdicts about the fixes that have places in a package, by its tested releases, the oldest first."""
    found: List[Verdict] = []
    older: Optional[Tuple[Version, Code]] = None
    for version in versions:
        newer = (version, Code(read(version)))
        if older is not None:
            found += _step(matrix, package, older, newer)
        older = newer
    return found


def relying(matrix: Matrix, package: str, known: Version) -> Iterator[Tuple[Patch, Row, List[str]]]:
    """The fixes that rely on something in a package at a tested release; one that another one needs is first."""
    for patch in sorted(matrix.patches.values(), key=lambda each: bool(each.needs)):
        row = _row(matrix, patch, package, known)
        places = list(hashes.relied_on(matrix, row, package)) if row is not None else []
        if row is not None and (places or patch.toolkit == package):
            yield patch, row, places


def _step(matrix: Matrix, package: str, old: Tuple[Version, Code], new: Tuple[Version, Code]) -> Iterator[Verdict]:
    known, release = old[0], new[0]
    out: Set[str] = set()
    for patch, before, places in relying(matrix, package, known):
        place = changed(before, places, old[1], new[1])
        why = place or next((f"it needs {name}" for name in patch.needs if name in out), "")
        if not is_same_major(known, release):
            why = f"{release.release[0]} is an unknown major version"
        elif place:
            out.add(patch.id)
        after = _row(matrix, patch, package, release)
        holds = after is not None and _covers(after, before)
        outcome = (HELD if holds else LEFT) if why else (RIGHT if holds else WRONG)
        said = f"the row {after.versions if after is not None else 'for it'} is another one"
        yield Verdict(patch.id, str(known), str(release), outcome, why or ("" if holds else said))


def _row(matrix: Matrix, patch: Patch, package: str, version: Version) -> Optional[Row]:
    """The row for a release, if it cures there; of another toolkit's fix the last one, whose places count alone."""
    of_patch = matrix.rows_of(patch.id)
    if patch.toolkit != package:
        return of_patch[-1] if of_patch[-1].status == CURED else None
    inside = next((row for row in of_patch if row.versions.holds(version)), None)
    return inside if inside is not None and inside.status == CURED and version in inside.tested else None


def _covers(after: Row, before: Row) -> bool:
    """Whether a row does what the other one does, at the same places."""
    return set(before.targets) <= set(after.targets)


def changed(row: Row, places: Sequence[str], old: Code, new: Code) -> str:
    """The first place that is not what it was; empty if there is none."""
    wrapped = hashes.wrapped()
    for place in places:
        if place in wrapped and place not in row.rests_on:
            was, now = hashes.parameters_of(old, place), hashes.parameters_of(new, place)
            is_same = was == now or (was is not None and now is not None and unchanged.keeps(was, now))
        else:
            is_same = not set(hashes.text_of(old, place)).isdisjoint(hashes.text_of(new, place))
        if not is_same:
            return place
    return ""


def counted(verdicts: Iterable[Verdict]) -> Dict[str, int]:
    """How often each outcome was."""
    outcomes = [each.outcome for each in verdicts]
    return {each: outcomes.count(each) for each in OUTCOMES}


class Kept(NamedTuple):
    """What the command has written of a toolkit: its releases, how often each outcome was, and each but the first."""

    releases: List[str]
    counts: Dict[str, int]
    others: List[Verdict]


def kept() -> Dict[str, Kept]:
    """What the command has written, by toolkit."""
    whole = json.loads(KEPT.read_text(encoding="utf-8"))
    return {
        name: Kept(one["releases"], one["counts"], [Verdict(*each) for each in one["others"]])
        for name, one in whole.items()
    }


def summed(found: Iterable[Kept]) -> Dict[str, int]:
    """How often each outcome was in all toolkits."""
    every = list(found)
    return {outcome: sum(kept.counts[outcome] for kept in every) for outcome in OUTCOMES}


def keep(found: Dict[str, List[Verdict]], versions: Dict[str, List[Version]]) -> None:
    """Write the verdicts of some toolkits beside those that are kept."""
    whole: Dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    for name, verdicts in found.items():
        others = [each for each in verdicts if each.outcome != RIGHT]
        releases = list(map(str, versions[name]))
        whole[name] = {"releases": releases, "counts": counted(verdicts), "others": others}
    KEPT.write_text(json.dumps(dict(sorted(whole.items())), indent=1) + "\n", encoding="utf-8")
