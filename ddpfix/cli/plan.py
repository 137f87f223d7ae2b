"""``ddpfix plan``: what would be done here, without importing torch or any toolkit."""

from __future__ import annotations

import json
import sys
from typing import Any, Dict, List, Mapping, Tuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ddpfix import __version__
from ddpfix._env import printable
from ddpfix.matrix import detect, loader, resolve, settings, untested
from ddpfix.state import State

_STYLES = {
    State.APPLY: "green",
    State.SKIP: "yellow",
    State.NOT_CURED: "yellow",
    State.OFF: "dim",
    State.ABSENT: "dim",
    State.NOT_AFFECTED: "dim",
}


def make(chosen: Mapping[str, object]) -> Dict[str, Any]:
    """Return the plan as plain data: versions, settings, and one decision a patch with its reason and targets."""
    whole = loader.load()
    values = settings.read(chosen, whole.patches)
    toolkits = detect.installed_versions(whole)
    decisions = resolve.resolve(whole, toolkits, values)
    return {
        "ddpfix": __version__,
        "toolkits": toolkits,
        "settings": {
            s.name: {"value": values[s.name], "from": values.sources.get(s.name, "default")} for s in settings.SETTINGS
        },
        "patches": [{**as_data(each), "problem": whole.patches[each.patch].problem} for each in decisions],
        "gone": list(values.gone),
        "untested": list(untested.lines(whole, decisions).values()),
    }


def as_data(decision: resolve.Decision) -> Dict[str, Any]:
    """Return a decision as plain data."""
    row = decision.row
    return {
        "id": decision.patch,
        "toolkit": decision.toolkit,
        "version": decision.version,
        "action": decision.action,
        "tested": decision.tested,
        "forced": decision.forced,
        "reason": decision.reason,
        "nearest": decision.nearest,
        "targets": [str(target) for target in row.targets] if row is not None else [],
        "matrix_line": row.line if row is not None else None,
    }


def show(chosen: Mapping[str, object], as_json: bool = False, everything: bool = False) -> None:
    """Print the plan: what applies, in groups; or each patch with its reason; or JSON."""
    plan = make(chosen)
    if as_json:
        sys.stdout.write(json.dumps(plan, indent=2) + "\n")
        return
    console = new_console()
    console.print(Text(f"ddpfix {__version__}: the plan for this environment (nothing is changed)"))
    console.print(_table(plan["patches"]) if everything else grouped(plan["patches"]))
    changed = [f"{n} = {v['value']} (from {v['from']})" for n, v in plan["settings"].items() if v["from"] != "default"]
    for text in [*plan["gone"], *plan["untested"]]:
        console.print(plain(text))
    console.print(plain("settings: " + ("; ".join(changed) or "all at their defaults")))
    if not everything:
        console.print(
            Text("--all says what each patch is for, or why it is left out; explain <patch> has the evidence")
        )


def new_console() -> Console:
    """Return the console of a command: as wide as the terminal is."""
    # A pipe has no width; a table squeezed to 80 columns cannot be searched.
    return Console(width=None if sys.stdout.isatty() else 140)


def grouped(entries: List[Dict[str, Any]]) -> Table:
    """Return one line a toolkit and action; a toolkit that is not installed is one line."""
    table = Table(show_lines=False)
    for heading, keep in (("toolkit", True), ("action", True), ("patches", False)):
        table.add_column(heading, no_wrap=keep, overflow="fold")
    groups: Dict[Tuple[str, State, bool], List[Dict[str, Any]]] = {}
    for entry in entries:
        groups.setdefault((entry["toolkit"], entry["action"], entry["tested"]), []).append(entry)
    toolkits = list(dict.fromkeys(entry["toolkit"] for entry in entries))
    order = list(_STYLES)
    for toolkit, action, tested in sorted(groups, key=lambda g: (toolkits.index(g[0]), order.index(g[1]), not g[2])):
        members = groups[toolkit, action, tested]
        shown = action + ("" if tested else " (not tested)")
        name = plain(f"{toolkit} {members[0]['version'] or '-'}")
        table.add_row(name, plain(shown, _STYLES[action]), plain(_in_short(action, members)))
    return table


def _in_short(action: State, entries: List[Dict[str, Any]]) -> str:
    names = ", ".join(entry["id"] for entry in entries)
    if action in (State.ABSENT, State.NOT_AFFECTED):
        return f"{len(entries)} patches" if len(entries) > 1 else names
    if action == State.SKIP:
        # The reasons differ in the variable that forces each one.
        reasons = dict.fromkeys(entry["reason"].partition(";")[0] for entry in entries)
        return f"{names}: {'; '.join(reasons)}"
    return names


def _table(entries: List[Dict[str, Any]]) -> Table:
    table = Table(show_lines=False)
    for heading, keep in (("patch", True), ("toolkit", True), ("action", True), ("what it is for, or why not", False)):
        table.add_column(heading, no_wrap=keep, overflow="fold")
    for entry in entries:
        action = entry["action"] + ("" if entry["tested"] else " (not tested)")
        toolkit = plain(f"{entry['toolkit']} {entry['version'] or '-'}")
        # Of what will be done, what for; of all else, why not.
        why = entry["problem"] if entry["action"] == State.APPLY and entry["tested"] else entry["reason"]
        table.add_row(plain(entry["id"]), toolkit, plain(action, _STYLES[entry["action"]]), plain(why))
    return table


def plain(text: str, style: str = "") -> Text:
    """Return one line in which nothing is markup or commands the terminal: what is not printable is escaped."""
    return Text(printable(text), style=style)
