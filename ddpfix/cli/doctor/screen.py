"""The doctor's report on a screen: problems first, each with what to do, then the facts."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any, Dict, Iterable, List, Mapping, Tuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ddpfix.cli import plan
from ddpfix.cli.doctor.examination import BLOCKS, make
from ddpfix.cli.plan import plain

# Problems that are printed; --json has all.
_SHOWN = 30


def whole(report: Mapping[str, Any]) -> Group:
    """Everything."""
    parts: List[Any] = [plain(f"ddpfix {report['versions'].get('ddpfix', '?')}: doctor"), problems(report["findings"])]
    for title in ("versions", "activation", "settings", "network", "limits", "patches"):
        part = report[title]
        parts.append(Text(f"\n{'fixes' if title == 'patches' else title}", style="bold"))
        if title == "patches" and "error" not in part:
            parts += [plan.in_use(part["entries"]), *map(plain, plan.others(part["entries"]))]
            states = Counter(entry["state"] for entry in part["entries"])
            told = [
                f"{states[state]} {state}" for state in ("applied", "registered", "armed", "failed") if states[state]
            ]
            parts += [Text(f"in this process: {', '.join(told)}")] if told else []
        else:
            is_settings = title == "settings" and "error" not in part
            parts.append(
                facts(_chosen(part) if is_settings else [(n.replace("_", " "), said(v)) for n, v in part.items()])
            )
    return Group(*parts)


def problems(findings: List[Dict[str, str]]) -> Group:
    """Return the problems with their remedies, or one line that there is none."""
    if not findings:
        return Group(Text("no problem found", style="green"))
    lines: List[Any] = []
    for each in findings[:_SHOWN]:
        style = "red" if each["level"] == BLOCKS else "yellow"
        lines += [plain(f"{each['level']}: {each['text']}", style), plain(f"    {each['cure']}")]
    if len(findings) > _SHOWN:
        lines.append(Text(f"and {len(findings) - _SHOWN} more (--json has them)"))
    return Group(*lines)


def facts(rows: Iterable[Tuple[str, str]]) -> Table:
    """Names and values side by side."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(plain(f"  {name}"), plain(value))
    return table


def said(value: object) -> str:
    """Return a value in words."""
    if value is None or value == [] or value == {}:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} {said(each)}" for name, each in value.items() if each is not None) or "-"
    return ", ".join(map(said, value)) if isinstance(value, list) else str(value)


def _chosen(part: Mapping[str, Any]) -> List[Tuple[str, str]]:
    """Return the settings that are not at their defaults."""
    chosen = {**part["values"], **part["switches"]}
    rows = [(n, f"{each['value']} (from {each['from']})") for n, each in chosen.items() if each["from"] != "default"]
    return [*rows, ("all others" if rows else "all", "at their defaults")]


def show(as_json: bool) -> int:
    """Print the report, and return the exit code; MatrixError: the compatibility matrix cannot be read."""
    report = make()
    if as_json:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    else:
        plan.new_console().print(whole(report))
    return 1 if report["blocked"] else 0
