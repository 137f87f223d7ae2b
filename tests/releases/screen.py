"""What was found about releases, on a screen or as JSON."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any, Dict, Iterator, List, Mapping, Tuple

from ddpfix.cli import plan
from tests.releases.compare import FINE
from tests.releases.watch import HOLDS, LOOK, NOT_COMPARED

_SHOWN = {HOLDS: "holds", LOOK: "needs a look", NOT_COMPARED: "not compared"}
_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def show(whole: Mapping[str, Any], as_json: bool) -> None:
    """Print everything.

    Args:
        whole: the releases, and notes about what was not looked at.
        as_json: print the data as it is.
    """
    if as_json:
        sys.stdout.write(json.dumps(whole, indent=2) + "\n")
        return
    console = plan.new_console()
    for release in whole["releases"]:
        for line in _lines(release):
            console.print(plan.plain(line.expandtabs(4), _STYLES.get(line[:1], "")), soft_wrap=True)
    for note in whole["notes"]:
        console.print(plan.plain(note))


def _lines(release: Mapping[str, Any]) -> Iterator[str]:
    """One line a row, then each place to look at with its diff, then the counts."""
    rows: List[Dict[str, Any]] = release["rows"]
    name = f"{release['toolkit']} {release['version']}"
    yield f"{name} ({release['kind']})"
    for row in rows:
        states = Counter(place["state"] for place in row["places"])
        counts = ", ".join(f"{number} {state}" for state, number in states.items()) or "no place"
        against = " or ".join(row["against"]) or "nothing"
        yield f"{row['patch']:32} {_SHOWN[row['verdict']]:12} {row['position']} ({row['row']}), {against}: {counts}"
    for (at, state, message, diff), patches in _to_look_at(rows).items():
        yield from (
            "",
            f"{at}: {state}: {message}",
            f"patches: {', '.join(dict.fromkeys(patches))}",
            *diff.splitlines(),
        )
    verdicts = [f"{sum(row['verdict'] == each for row in rows)} {_SHOWN[each]}" for each in _SHOWN]
    yield from ("", f"{name}: rows: {', '.join(verdicts)}")
    if release["untested"]:
        versions = ", ".join(release["untested"])
        yield f"{len(release['untested'])} releases inside of rows are not tested (--inside compares them): {versions}"
    yield ""


def _to_look_at(rows: List[Dict[str, Any]]) -> Dict[Tuple[str, ...], List[str]]:
    """Each place once, with the patches that are put on it."""
    found: Dict[Tuple[str, ...], List[str]] = {}
    for row in rows:
        for place in row["places"]:
            if place["state"] not in FINE:
                found.setdefault(tuple(place[key] for key in ("at", "state", "message", "diff")), []).append(
                    row["patch"]
                )
    return found
