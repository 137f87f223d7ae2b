"""The parts of the page that are tables: settings, what ddpfix did, and what ran where."""

from __future__ import annotations

import html
from typing import Any, Callable, Dict, List, Sequence

from ddpfix.cli.report import words
from ddpfix.cli.report.figures.figure import Table

Data = Dict[str, Any]
PARTS = (("settings", "Settings"), ("done", "What ddpfix did"), ("ranks", "Ranks and environment"))
# Rows of a table on the page.
MOST = 200


def make(name: str, data: Data) -> str:
    """Return the content of one part."""
    return _MAKERS[name](data)


def table(content: Table, caption: str) -> str:
    """Return a table in a box of its own, so that a wide one scrolls and the page does not."""
    heads = "".join(f'<th scope="col">{_text(each)}</th>' for each in content.headings)
    rows = "".join(
        "<tr>"
        + f'<th scope="row">{_text(row[0])}</th>'
        + "".join(f"<td>{_text(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in content.rows
    )
    label = _text(f"Table: {caption}")
    return (
        f'<div class="scroll" role="group" tabindex="0" aria-label="{label}"><table>'
        f"<caption>{_text(caption)}</caption><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _text(value: Any) -> str:
    return html.escape(str(value), quote=True)


def _settings(data: Data) -> str:
    rows = [
        [each["name"], each["requested"] or "-", each["effective"] or "-", each["note"] or "-", _who(each, data)]
        for each in data["settings"]
    ]
    parts = []
    if rows:
        parts.append(
            table(Table(["setting", "requested", "in effect", "note", "ranks"], rows[:MOST]), "Settings of the toolkit")
        )
    else:
        parts.append("<p>No setting of a toolkit was seen to be asked for.</p>")
    changed = [[each["name"], each["value"], each["from"]] for each in data["ddpfix_settings"]]
    changed.sort(key=lambda row: row[2] == "default")
    if changed:
        parts.append(table(Table(["setting", "value", "from"], changed), "Settings of ddpfix"))
    return "".join(parts)


def _who(seen: Data, data: Data) -> str:
    if seen["of_ranks"] == data["ranks"] > 1:
        return "all"
    return words.ranks(seen["ranks"], seen["of_ranks"])


def _done(data: Data) -> str:
    parts = []
    if data["patches"]:
        parts.append(_patches(data))
    else:
        parts.append("<p>The trace has no list of patches.</p>")
    if data["events"]:
        rows = [
            [each["text"], each["level"], _step(each), f"{each['times']:,}", _who(each, data)]
            for each in data["events"]
        ]
        parts.append(table(Table(["line", "level", "first in step", "times", "ranks"], rows[:MOST]), "Lines of ddpfix"))
    if data["stalls"]:
        rows = [[each["phase"], _step(each), f"{each['times']:,}", _who(each, data)] for each in data["stalls"]]
        parts.append(table(Table(["where", "first in step", "times", "ranks"], rows[:MOST]), "Seconds at one place"))
    if data["texts_left_out"]:
        parts.append(f"<p>{data['texts_left_out']:,} lines with further texts are in the trace.</p>")
    return "".join(parts)


def _patches(data: Data) -> str:
    """Return the patches that did something, and the others where they can be opened."""
    rows = [[each["id"], each["state"], each["reason"], _who(each, data)] for each in data["patches"]]
    acted = [row for row in rows if row[1] in ("applied", "registered")]
    others = [row for row in rows if row not in acted]
    heads = ["patch", "state", "why", "ranks"]
    shown = table(Table(heads, acted[:MOST]), "Patches") if acted else "<p>No patch was applied.</p>"
    if others:
        more = table(Table(heads, others[:MOST]), "Patches that did nothing here")
        shown += f"<details><summary>{len(others):,} patches that did nothing here, and why</summary>{more}</details>"
    return shown


def _step(seen: Data) -> str:
    return "-" if seen["step"] is None else f"{seen['step']:,}"


def _ranks(data: Data) -> str:
    environment = data["environment"]
    versions = [
        ("ddpfix", environment.get("ddpfix")),
        ("Python", environment.get("python")),
        ("torch", environment.get("torch")),
    ]
    versions += sorted(environment.get("toolkits", {}).items())
    hosts = [f"{host} ({words.count(number, 'rank')})" for host, number in environment["hosts"].items() if host]
    rows: List[Sequence[str]] = [
        ("command", environment.get("command") or words.UNKNOWN),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions if version)),
        ("hosts", words.listed(hosts, 8) or words.UNKNOWN),
        ("ranks", f"{data['ranks']:,} with a trace, of {data['world_size']:,}"),
        ("processes before these", f"{data['earlier_processes']:,}"),
    ]
    ended = [[each["how"], words.ranks(each["ranks"])] for each in data["ends"]]
    return table(Table(["what", "value"], rows), "Environment") + table(
        Table(["how", "ranks"], ended[:MOST]), "How ranks ended"
    )


_MAKERS: Dict[str, Callable[[Data], str]] = {"settings": _settings, "done": _done, "ranks": _ranks}
