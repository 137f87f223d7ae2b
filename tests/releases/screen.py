"""What was found about releases, on a screen or as JSON."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any, Dict, List, Mapping, Tuple

from rich.console import Console
from rich.table import Table

from ddpfix.cli import plan
from ddpfix.cli.plan import plain
from tests.releases.compare import FINE
from tests.releases.watch import HOLDS, LOOK, NOT_COMPARED

_STYLES = {HOLDS: "green", LOOK: "yellow", NOT_COMPARED: "cyan"}
_SHOWN = {HOLDS: "holds", LOOK: "needs a look", NOT_COMPARED: "not compared"}


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
        _release(console, release)
    for note in whole["notes"]:
        console.print(plain(note))


def _release(console: Console, release: Mapping[str, Any]) -> None:
    rows: List[Dict[str, Any]] = release["rows"]
    console.print(plain(f"{release['toolkit']} {release['version']} ({release['kind']})", "bold"))
    console.print(_table(rows))
    for place, patches in _to_look_at(rows):
        console.print()
        console.print(plain(f"{place['at']}: {place['state']}: {place['message']}", "bold"))
        console.print(plain(f"patches: {', '.join(patches)}"))
        for line in place["diff"].splitlines():
            console.print(plain(line.expandtabs(4), _style(line)))
    counts = [f"{sum(row['verdict'] == each for row in rows)} {_SHOWN[each]}" for each in _STYLES]
    console.print()
    console.print(plain(f"{release['toolkit']} {release['version']}: rows: {', '.join(counts)}"))
    untested = release["untested"]
    if untested:
        versions = ", ".join(untested)
        console.print(
            plain(f"{len(untested)} releases inside of rows are not tested (--inside compares them): {versions}")
        )
    console.print()


def _table(rows: List[Dict[str, Any]]) -> Table:
    table = Table(show_lines=False)
    for heading, keep in (
        ("patch", True),
        ("row", False),
        ("release is", True),
        ("compared with", True),
        ("result", True),
    ):
        table.add_column(heading, no_wrap=keep, overflow="fold")
    table.add_column("places", overflow="fold")
    for row in rows:
        cells = [row["patch"], row["row"], _position(row), " or ".join(row["against"]) or "-"]
        verdict = plain(_SHOWN[row["verdict"]], _STYLES[row["verdict"]])
        table.add_row(*map(plain, cells), verdict, plain(_in_short(row)))
    return table


def _position(row: Mapping[str, Any]) -> str:
    return {"tested": "tested", "inside": "inside, untested", "outside": "outside of it"}[row["position"]]


def _in_short(row: Mapping[str, Any]) -> str:
    counts = Counter(place["state"] for place in row["places"])
    return ", ".join(f"{number} {state}" for state, number in counts.items())


def _to_look_at(rows: List[Dict[str, Any]]) -> List[Tuple[Dict[str, Any], List[str]]]:
    """Each place once, with the patches that are put on it."""
    found: Dict[Tuple[str, str, str], Tuple[Dict[str, Any], List[str]]] = {}
    for row in rows:
        for place in row["places"]:
            if place["state"] not in FINE:
                key = (place["at"], place["message"], place["diff"])
                patches = found.setdefault(key, (place, []))[1]
                patches += [row["patch"]] if row["patch"] not in patches else []
    return list(found.values())


def _style(line: str) -> str:
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
