"""The result of all ranks on a screen."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ddpfix import __version__
from ddpfix.cli.doctor import screen
from ddpfix.cli.doctor.ranks.compare import listed
from ddpfix.cli.words import plain


def whole(result: Mapping[str, Any]) -> Group:
    """Everything: problems first."""
    head = f"ddpfix {__version__}: doctor, {result['arrived']} of {result['world_size']} ranks"
    hosts = result["hosts"]["number"]
    where = f"{hosts} host{'s' if hosts > 1 else ''}"
    parts: List[Any] = [plain(f"{head} on {where}, backend {result['backend'] or 'none'}")]
    parts.append(screen.problems([_with_ranks(each) for each in result["findings"]]))
    if result["collectives"]:
        parts += [Text("\ncollectives", style="bold"), _collectives(result["collectives"])]
    clocks = result["clocks"]
    agreed = result["agreement"]
    rows = [
        ("process group", _seconds(result["group_seconds"])),
        ("ddpfix's agreement", "-" if agreed is None else f"{_same(agreed)} ({agreed['max_ms']:.1f} ms)"),
        ("clocks", _apart(clocks)),
        ("hosts", ", ".join(f"{host} ({ranks})" for host, ranks in result["hosts"]["ranks"].items())),
    ]
    return Group(*parts, Text("\nranks", style="bold"), screen.facts(rows))


def _with_ranks(each: Dict[str, Any]) -> Dict[str, str]:
    """Return a finding with its ranks in the text, which may be all of them."""
    number = each["number_of_ranks"]
    more = f" and {number - len(each['ranks'])} more" if number > len(each["ranks"]) else ""
    ranks = f" [rank {listed(each['ranks'])}{more}]" if each["ranks"] else ""
    return {**each, "text": each["text"] + ranks}


def _same(agreed: Mapping[str, Any]) -> str:
    return "all ranks do the same" if agreed["same"] else "the ranks do not do the same"


def _apart(clocks: Mapping[str, Any]) -> str:
    if clocks["most_s"] is None:
        return "-"
    return f"{_seconds(clocks['most_s'])} apart at most (known to {_seconds(clocks['precision_s'])})"


def _seconds(value: Any) -> str:
    return "-" if value is None else f"{value:.3g} s"


def _collectives(entries: List[Dict[str, Any]]) -> Table:
    table = Table()
    for heading in ("collective", "times", "min ms", "median ms", "max ms", "slowest rank", "GB/s (bus)"):
        table.add_column(heading, justify="left" if heading == "collective" else "right")
    for each in entries:
        bandwidth = each["bus_gb_per_s"]
        times = [f"{each[name]:.3f}" for name in ("min_ms", "median_ms", "max_ms")]
        speed = f"{bandwidth:.2f}" if bandwidth is not None else "-"
        table.add_row(plain(each["name"]), str(each["repetitions"]), *times, str(each["slowest_rank"]), speed)
    return table
