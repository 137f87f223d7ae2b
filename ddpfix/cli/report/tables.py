"""The parts of the page that are tables: settings, what ddpfix did, and what ran where."""

from __future__ import annotations

import html
import re
from typing import Any, Callable, Dict, List, Sequence, Tuple

from ddpfix.cli.report import words
from ddpfix.cli.report.figures.figure import Table

Data = Dict[str, Any]
PARTS = (("settings", "Settings"), ("done", "What ddpfix did"), ("ranks", "Ranks"))
# Rows of a table on the page.
MOST = 200
_DEFAULT = "default"
_NUMBER = re.compile(r"[+-]?\d[\d,.e+-]*( (s|ms|%|GiB|MiB|KiB|bytes))?")


def make(name: str, runs: Sequence[Data]) -> str:
    """Return the content of one part."""
    return _MAKERS[name](runs)


def table(content: Table, caption: str) -> str:
    """Return a table in a box that scrolls where it is wide; a narrow window has a block for each row instead."""
    rows = content.rows[:MOST]
    kinds = [_kind([row[place] for row in rows]) for place in range(len(content.headings))]
    heads = "".join(f'<th scope="col"{kind}>{text(each)}</th>' for kind, each in zip(kinds, content.headings))
    labels = [f'{kind} data-label="{text(each)}"' for kind, each in zip(kinds, content.headings)]
    body = "".join(
        f'<tr><th scope="row"{labels[0]}>{text(row[0])}</th>'
        + "".join(f"<td{label}>{text(cell)}</td>" for label, cell in zip(labels[1:], row[1:]))
        + "</tr>"
        for row in rows
    )
    label = text(f"Table: {caption}")
    return (
        f'<div class="scroll" role="group" tabindex="0" aria-label="{label}"><table>'
        f"<caption>{text(caption)}</caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _kind(cells: Sequence[str]) -> str:
    """Return the class of a column of numbers, which stand to the right."""
    known = [cell for cell in cells if cell not in ("-", words.UNKNOWN)]
    return ' class="number"' if known and all(map(_NUMBER.fullmatch, known)) else ""


def text(value: Any) -> str:
    """Escaped for HTML, also inside of an attribute."""
    return html.escape(str(value), quote=True)


def _folded(summary: str, heads: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    """Return a table that can be opened; empty without rows."""
    content = table(Table(heads, rows), caption)
    return f"<details><summary>{text(summary)}</summary>{content}</details>" if rows else ""


def columns(runs: Sequence[Data], of: Callable[[Data], str]) -> str:
    """Return the same for each run, below its name and beside each other where the screen is wide enough."""
    if len(runs) == 1:
        return of(runs[0])
    parts = [f"<div><h3>{text(data['name'])}</h3>{of(data)}</div>" for data in runs]
    return f'<div class="columns">{"".join(parts)}</div>'


def _settings(runs: Sequence[Data]) -> str:
    return _of_toolkits(runs) + _of_ddpfix(runs)


def _of_toolkits(runs: Sequence[Data]) -> str:
    caption = "Toolkit settings"
    if len(runs) == 1:
        rows = [
            [each["name"], each["requested"] or "-", each["effective"] or "-", each["note"] or "-", _who(each, runs[0])]
            for each in runs[0]["settings"]
        ]
        heads = ["setting", "requested", "in effect", "note", "ranks"]
    else:
        found: Dict[str, List[str]] = {}
        for place, data in enumerate(runs):
            for each in data["settings"]:
                found.setdefault(each["name"], ["-"] * len(runs))[place] = _in_effect(each)
        rows = [[name, *values] for name, values in found.items()]
        heads = ["setting", *(data["name"] for data in runs)]
    return table(Table(heads, rows), caption) if rows else "<p>No toolkit settings recorded.</p>"


def _in_effect(setting: Data) -> str:
    note = f"; {setting['note']}" if setting["note"] else ""
    return f"{setting['effective']} (requested: {setting['requested'] or '-'}{note})"


def _of_ddpfix(runs: Sequence[Data]) -> str:
    """Return the settings that some run has changed, and the others where they can be opened."""
    found: Dict[str, List[Tuple[str, str]]] = {}
    for place, data in enumerate(runs):
        for each in data["ddpfix_settings"]:
            if each["name"] == "trace":
                # Each traced run has it.
                continue
            values = found.setdefault(each["name"], [("-", "-")] * len(runs))
            values[place] = (each["value"], each["from"])
    changed = [name for name, values in found.items() if any(source != _DEFAULT for _, source in values)]
    heads = ["setting", *(data["name"] for data in runs)] if len(runs) > 1 else ["setting", "value (from)"]
    rows = [[name, *(f"{value} ({source})" for value, source in found[name])] for name in changed]
    shown = table(Table(heads, rows), "ddpfix settings") if rows else ""
    rest = [[name, *(value for value, _ in values)] for name, values in found.items() if name not in changed]
    heads = [heads[0], *(data["name"] for data in runs)] if len(runs) > 1 else ["setting", "value"]
    summary = f"{words.count(len(rest), 'setting')} at default"
    return shown + _folded(summary, heads, rest, "ddpfix settings at their default")


def _who(seen: Data, data: Data) -> str:
    if seen["of_ranks"] == data["ranks"] > 1:
        return "all"
    return words.ranks(seen["ranks"], seen["of_ranks"])


def _done(runs: Sequence[Data]) -> str:
    return columns(runs, _done_in)


def _done_in(data: Data) -> str:
    said = [
        [each["text"], each["level"], _step(each), f"{each['times']:,}", _who(each, data)] for each in data["events"]
    ]
    heads = ["line", "level", "first step", "times", "ranks"]
    serious, lines = [row for row in said if row[1] != "info"], [row for row in said if row[1] == "info"]
    parts = [table(Table(heads, serious), "Warnings and errors from ddpfix")] if serious else []
    parts.append(_folded(f"{words.count(len(lines), 'line')} from ddpfix", heads, lines, "Lines from ddpfix"))
    parts.append(_patches(data) if data["patches"] else "<p>No list of fixes recorded.</p>")
    rows = [[each["phase"], _step(each), f"{each['times']:,}", _who(each, data)] for each in data["stalls"]]
    caption = "Stalls of two seconds or more"
    heads = ["where", "first step", "times", "ranks"]
    parts.append(_folded(f"{caption} in {words.count(len(rows), 'place')}", heads, rows, caption))
    if data["texts_left_out"]:
        parts.append(f"<p>{data['texts_left_out']:,} more lines are in the trace.</p>")
    return "".join(parts)


def _patches(data: Data) -> str:
    """Return the fixes that were ready, and the others; both are folded."""
    rows = [[each["id"], each["state"], each["reason"], _who(each, data)] for each in data["patches"]]
    ready = [row for row in rows if row[1] in ("applied", "registered")]
    others = [row for row in rows if row not in ready]
    heads = ["fix", "state", "reason", "ranks"]
    found = _folded(f"{len(ready):,} fix{'' if len(ready) == 1 else 'es'} ready", heads, ready, "Fixes ready")
    return found + _folded(f"{len(others):,} fixes not in use", heads, others, "Fixes not in use")


def _step(seen: Data) -> str:
    return "-" if seen["step"] is None else f"{seen['step']:,}"


def _ranks(runs: Sequence[Data]) -> str:
    return columns(runs, _ranks_of)


def _ranks_of(data: Data) -> str:
    hosts = [f"{host} ({words.count(number, 'rank')})" for host, number in data["environment"]["hosts"].items() if host]
    sent = data["gradients"]["sent"]
    rows: List[Sequence[str]] = [
        ("command", data["environment"].get("command") or words.UNKNOWN),
        ("hosts", words.listed(hosts, 8) or words.UNKNOWN),
        ("ranks", f"{data['ranks']:,} with a trace, of {data['world_size']:,}"),
    ]
    if data["earlier_processes"]:
        rows.append(("earlier processes", f"{data['earlier_processes']:,} in this folder"))
    if sent:
        rows.append(("gradients communicated", f"{words.size(sent)} by all ranks"))
    rows += [(f"end of {words.ranks(each['ranks'])}", each["how"]) for each in data["ends"]]
    return table(Table(["name", "value"], rows), "Command, hosts and ends")


_MAKERS: Dict[str, Callable[[Sequence[Data]], str]] = {"settings": _settings, "done": _done, "ranks": _ranks}
