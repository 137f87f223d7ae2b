"""The doctor's report on a screen: problems first, each with what to do, then the facts."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Tuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ddpfix.cli import plan
from ddpfix.cli.doctor.finding import BLOCKS
from ddpfix.cli.plan import plain

# Problems that are printed; --json has all.
_SHOWN = 30
Row = Tuple[str, str]


def whole(report: Mapping[str, Any]) -> Group:
    """Everything."""
    parts: List[Any] = [plain(f"ddpfix {report['versions'].get('ddpfix', '?')}: doctor"), problems(report["findings"])]
    for title, rows in _sections(report):
        parts += [Text(f"\n{title}", style="bold"), facts(rows)]
    parts += [Text("\nfixes", style="bold"), *_patches(report["patches"])]
    return Group(*parts)


def problems(findings: List[Dict[str, str]]) -> Group:
    """Return the problems with their remedies, or one line that there is none."""
    if not findings:
        return Group(Text("no problem found", style="green"))
    lines: List[Any] = []
    for each in findings[:_SHOWN]:
        style = "red" if each["level"] == BLOCKS else "yellow"
        lines.append(plain(f"{each['level']}: {each['text']}", style))
        lines.append(plain(f"    {each['cure']}"))
    if len(findings) > _SHOWN:
        lines.append(Text(f"and {len(findings) - _SHOWN} more (--json has them)"))
    return Group(*lines)


def facts(rows: Iterable[Row]) -> Table:
    """Names and values side by side."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(plain(f"  {name}"), plain(value))
    return table


def _sections(report: Mapping[str, Any]) -> List[Tuple[str, List[Row]]]:
    makers = (
        ("versions", _versions),
        ("activation", _plain),
        ("settings", _settings),
        ("network", _network),
        ("limits", _limits),
    )
    # A part that could not be looked at has one key.
    return [(name, _plain(report[name]) if "error" in report[name] else make(report[name])) for name, make in makers]


def said(value: object) -> str:
    """Return a value in words."""
    if value is None or value == [] or value == {}:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} {said(each)}" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(said, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _plain(part: Mapping[str, Any]) -> List[Row]:
    return [(name.replace("_", " "), said(value)) for name, value in part.items()]


def _versions(part: Mapping[str, Any]) -> List[Row]:
    here = {name: version for name, version in {**part["toolkits"], **part["beside"]}.items() if version}
    rows = [(name, said(part[name])) for name in ("python", "system", "libc")]
    built = {name: value for name, value in part["torch"].items() if value is not None}
    return [*rows, ("torch", said(built)), ("installed", said(here))]


def _settings(part: Mapping[str, Any]) -> List[Row]:
    chosen = {**part["values"], **part["switches"]}
    rows = [(n, f"{each['value']} (from {each['from']})") for n, each in chosen.items() if each["from"] != "default"]
    return [*rows, ("all others" if rows else "all", "at their defaults")]


def _network(part: Mapping[str, Any]) -> List[Row]:
    taken = f"{said(part['gloo']['would_take'])} ({part['gloo']['why']})"
    rows = [(name.replace("_", " "), said(part[name])) for name in ("backend", "interfaces", "host_name_resolves")]
    return [*rows, ("gloo would use", taken)]


def _limits(part: Mapping[str, Any]) -> List[Row]:
    rows = [("/dev/shm MiB", said(part["shared_memory_mib"])), ("open files", said(part["open_files"]))]
    return [*rows, ("sharing strategy", said(part["sharing_strategy"]))]


def _patches(part: Mapping[str, Any]) -> List[Any]:
    if "error" in part:
        return [facts(_plain(part))]
    lines: List[Any] = [plan.in_use(part["entries"]), *map(plain, plan.others(part["entries"]))]
    states: Dict[str, int] = {}
    for entry in part["entries"]:
        if entry["state"] in ("applied", "registered", "armed", "failed"):
            states[entry["state"]] = states.get(entry["state"], 0) + 1
    if states:
        lines.append(Text("in this process: " + ", ".join(f"{count} {state}" for state, count in states.items())))
    return lines
