"""``ddpfix plan``: what would be done here, without importing torch or any toolkit."""

from __future__ import annotations

import json
import sys
from typing import Any, Dict, List, Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ddpfix import __version__
from ddpfix._switch import printable
from ddpfix.matrix import detect, loader, model, resolve, untested
from ddpfix.settings import reading
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
    values = reading.read(chosen, whole.patches)
    toolkits = detect.installed_versions(whole)
    decisions = resolve.resolve(whole, toolkits, values)
    return {
        "ddpfix": __version__,
        "toolkits": toolkits,
        "settings": {
            s.name: {"value": values[s.name], "from": values.sources.get(s.name, "default")} for s in reading.SETTINGS
        },
        "patches": [as_data(whole, each) for each in decisions],
        "gone": list(values.gone),
        "untested": list(untested.lines(whole, decisions).values()),
    }


def as_data(whole: model.Matrix, decision: resolve.Decision) -> Dict[str, Any]:
    """Return a decision as plain data, with what its fix is for and what it does."""
    row, patch = decision.row, whole.patches[decision.patch]
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
        "problem": patch.problem,
        "does": patch.does or patch.problem,
    }


def show(chosen: Mapping[str, object], as_json: bool = False, everything: bool = False) -> None:
    """Print the plan: what is done here, and what not in a few lines; or each fix with its reason; or JSON."""
    plan = make(chosen)
    if as_json:
        sys.stdout.write(json.dumps(plan, indent=2) + "\n")
        return
    console = new_console()
    console.print(Text(f"ddpfix {__version__}: this is what it does in this environment (nothing is changed now)"))
    console.print(_table(plan["patches"]) if everything else in_use(plan["patches"]))
    changed = [f"{n} = {v['value']} (from {v['from']})" for n, v in plan["settings"].items() if v["from"] != "default"]
    for text in [*([] if everything else others(plan["patches"])), *plan["gone"], *plan["untested"]]:
        console.print(plain(text))
    console.print(plain("settings: " + ("; ".join(changed) or "all at their defaults")))
    if not everything:
        console.print(Text("plan --all has the reason for each fix, explain <fix> the problem and the evidence"))


def new_console() -> Console:
    """Return the console of a command: as wide as the terminal is."""
    # A pipe has no width; a table squeezed to 80 columns cannot be searched.
    return Console(width=None if sys.stdout.isatty() else 140)


def in_use(entries: List[Dict[str, Any]]) -> Table:
    """Return one line a fix that is applied here: what ddpfix does, and last the id."""
    table = _headed("toolkit", "what ddpfix does", "fix")
    before = ""
    for entry in entries:
        if entry["action"] == State.APPLY:
            name = f"{entry['toolkit']} {entry['version']}"
            note = "" if entry["tested"] else " (untested)"
            table.add_row(plain(name if name != before else ""), plain(entry["does"] + note), plain(entry["id"]))
            before = name
    return table


def others(entries: List[Dict[str, Any]]) -> List[str]:
    """Return a line for each reason for which fixes are not applied; absent toolkits are one line together."""
    groups: Dict[str, List[str]] = {}
    for entry in entries:
        # The reasons of those of one release differ in the variable that forces each one.
        why = f"left out, {entry['reason'].partition(';')[0]}" if entry["action"] == State.SKIP else ""
        groups.setdefault(why or _NOT_APPLIED.get(entry["action"], ""), []).append(entry["id"])
    lines = [f"{why}: {', '.join(ids)}" for why, ids in sorted(groups.items()) if why]
    absent = dict.fromkeys(entry["toolkit"] for entry in entries if entry["action"] == State.ABSENT)
    return [*lines, *([f"not installed: {', '.join(absent)}"] if absent else [])]


_NOT_APPLIED = {
    State.OFF: "off",
    State.NOT_CURED: "not fixed in this release",
    State.NOT_AFFECTED: "not needed with this release",
}


def _table(entries: List[Dict[str, Any]]) -> Table:
    table = _headed("toolkit", "action", "what ddpfix does, or why nothing is done", "fix")
    for entry in entries:
        action = entry["action"] + ("" if entry["tested"] else " (not tested)")
        toolkit = plain(f"{entry['toolkit']} {entry['version'] or '-'}")
        # Of what will be done, what it is; of all else, why not.
        why = entry["does"] if entry["action"] == State.APPLY and entry["tested"] else entry["reason"]
        table.add_row(toolkit, plain(action, _STYLES[entry["action"]]), plain(why), plain(entry["id"]))
    return table


def _headed(*headings: str) -> Table:
    table = Table(show_lines=False)
    for heading in headings:
        table.add_column(heading, no_wrap=not heading.startswith("what"), overflow="fold")
    return table


def plain(text: str, style: str = "") -> Text:
    """Return one line in which nothing is markup or commands the terminal: what is not printable is escaped."""
    return Text(printable(text), style=style)
