"""The page: one HTML file that needs no network. Everything that comes from a trace is text, and is escaped."""

from __future__ import annotations

import html
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, Optional, Sequence, Tuple

from plotly import io

from ddpfix.cli.report import compare, figures, findings, words
from ddpfix.rules.finding import BAD, GOOD, PLAIN, Finding, several

Data = Dict[str, Any]
Row = Sequence[str]
_STYLE = Path(__file__).with_name("page.css")
_LEVELS = {BAD: "Needs attention", PLAIN: "Note", GOOD: "OK"}
# Rows of a table; --json has all.
_ROWS = 200
# Later than this no trace was written, whatever a file says.
_LATEST = 2**33


def make(runs: Sequence[Data], plotly: str) -> str:
    """Return the page as text.

    Args:
        runs: one run, or two beside each other, as :func:`ddpfix.cli.report.command.load` gives them.
        plotly: the source of plotly.js.
    """
    title = text(" against ".join(data["name"] for data in runs))
    parts = [
        _beside(runs, map(_head, runs)),
        "<h2>Findings</h2>",
        _beside(runs, map(_findings, runs)),
        _ratios(runs) if len(runs) == 2 else "",
        *_figures(runs),
        *(f"<h2>{heading}</h2>{_beside(runs, map(of, runs))}" for heading, of in _TABLES.items()),
    ]
    whole = "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}: ddpfix report</title>",
            f"<style>{_STYLE.read_text(encoding='utf-8')}</style>\n<script>{plotly}</script>\n</head>\n<body>",
            f"<h1>{title} <small>ddpfix report</small></h1>",
            *parts,
            "</body>\n</html>\n",
        ]
    )
    # What a program logged may have half of a character, which JSON can hold and UTF-8 cannot.
    return whole.encode("utf-8", "replace").decode("utf-8")


def text(value: Any) -> str:
    """Return a value as text, escaped for HTML."""
    return html.escape(str(value), quote=True)


def _beside(runs: Sequence[Data], parts: Iterable[str]) -> str:
    """Return the parts of each run, below its name and beside each other where the screen is wide enough."""
    if len(runs) == 1:
        return "".join(parts)
    named = "".join(f"<div><h3>{text(data['name'])}</h3>{part}</div>" for data, part in zip(runs, parts))
    return f'<div class="runs">{named}</div>'


def _table(headings: Row, rows: Sequence[Row]) -> str:
    """Return a table that scrolls where it is wide; a sentence where there are no rows."""
    if not rows:
        return "<p>None.</p>"
    head = "".join(f'<th scope="col">{text(each)}</th>' for each in headings)
    body = "".join("<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in rows[:_ROWS])
    more = f"<p>{len(rows) - _ROWS:,} more rows with --json.</p>" if len(rows) > _ROWS else ""
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}'


def _head(data: Data) -> str:
    """Return the command, when and how fast it ran, with what, and how many fixes of ddpfix were there."""
    facts = "".join(f"<dt>{label}</dt><dd>{text(value)}</dd>" for label, value in _facts(data) if value)
    ready = sum(each["state"] in ("applied", "registered") for each in data["patches"])
    did = f"ddpfix {data['environment'].get('ddpfix') or ''} had {words.count(ready, 'fix', 'fixes')} ready."
    return f"<dl>{facts}</dl><p>{text(did)}</p>"


def _facts(data: Data) -> Iterator[Tuple[str, str]]:
    environment = data["environment"]
    # A clock that was never set tells no date.
    begun, until = (each if each and 0 < each < _LATEST else 0.0 for each in map(environment.get, ("started", "until")))
    rate = compare.rate(data) if data["steps"] > 1 else None
    hosts = [f"{host} ({words.count(number, 'rank')})" for host, number in environment["hosts"].items() if host]
    toolkits = {
        "torch": environment.get("torch"),
        **(environment.get("toolkits") or {}),
        "Python": environment.get("python"),
    }
    yield "Command", environment.get("command") or ""
    yield "Started", f"{datetime.fromtimestamp(begun, timezone.utc):%Y-%m-%d %H:%M} UTC" if begun else ""
    if 0 < begun < until:
        seconds = until - begun
        yield "Duration", f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min {seconds % 60:.1f} s"
    yield "Steps", f"{data['steps']:,}"
    yield "Speed", f"{rate:,.3g} steps/s" if rate else ""
    yield "Ranks", f"{data['ranks']:,} of {data['world_size']:,}"
    yield "Hosts", words.listed(hosts, 8)
    yield "Versions", ", ".join(f"{name} {version}" for name, version in toolkits.items() if version)


def _findings(data: Data) -> str:
    return f"<ul>{''.join(map(_finding, findings.findings(data)))}</ul>"


def _finding(each: Finding) -> str:
    lines = "".join(f"<li>{_part(part)}</li>" for part in (each.cause, each.advice) if part)
    below = f"<ul>{lines}</ul>" if lines else ""
    return f'<li class="{each.level}"><strong>{_LEVELS[each.level]}:</strong> {_part(each.where)}{below}</li>'


def _part(part: str) -> str:
    """Return a part of a finding; what is indented can be pasted, or is a list of names."""
    code, plain = "<pre><code>{}</code></pre>", "{}\n"
    lines = (part[:1].upper() + part[1:]).splitlines()
    return "".join((code if line[:1] == " " else plain).format(text(line.strip())) for line in lines)


def _ratios(runs: Sequence[Data]) -> str:
    one, two = (data["name"] for data in runs)
    rows = [[each.name, *each.shown] for each in compare.compare(*runs)]
    return f"<h2>Ratios</h2>{_table(['number', one, two, f'ratio ({two} : {one})'], rows)}"


def _figures(runs: Sequence[Data]) -> Iterator[str]:
    """Yield the figures, those of the same name together."""
    drawn = [{figure.name: figure for figure in each} for each in figures.make(runs)]
    for name in dict.fromkeys(name for each in drawn for name in each):
        those = [each.get(name) for each in drawn]
        first = next(figure for figure in those if figure is not None)
        yield f"<h2>{text(first.title)}</h2><p>{text(first.about)}</p>{_beside(runs, map(_figure, those))}"


def _figure(figure: Optional[figures.Figure]) -> str:
    if figure is None:
        return "<p>This run has no data for it.</p>"
    shown: str = io.to_html(
        figure.spec, include_plotlyjs=False, full_html=False, config={"displayModeBar": False}, validate=False
    )
    return f'<figure role="img" aria-label="{text(figure.title)}">{shown}</figure>'


def _settings(data: Data) -> str:
    rows = [
        [each["name"], each["requested"] or "-", each["effective"] or "-", each["note"] or "-", _who(each, data)]
        for each in data["settings"]
    ]
    changed = [each for each in data["ddpfix_settings"] if each["from"] != "default" and each["name"] != "trace"]
    rows += [[f"ddpfix: {each['name']}", each["value"], each["value"], f"from {each['from']}", "-"] for each in changed]
    return _table(["setting", "requested", "in effect", "note", "ranks"], rows)


def _who(seen: Data, data: Data) -> str:
    return "all" if len(seen["ranks"]) == data["ranks"] > 1 else several(seen["ranks"])


def _lines(data: Data) -> str:
    """Return what ddpfix logged, warnings and errors first."""
    rows = [
        [each["text"], each["level"], words.number(each["step"]), words.number(each["times"]), _who(each, data)]
        for each in sorted(data["events"], key=lambda each: each["level"] == "info")
    ]
    return _table(["line", "level", "first step", "times", "ranks"], rows)


def _fixes(data: Data) -> str:
    rows = [[each["id"], each["state"], each["reason"], _who(each, data)] for each in data["patches"]]
    rows.sort(key=lambda row: row[1] not in ("applied", "registered"))
    return _table(["fix", "state", "reason", "ranks"], rows)


_TABLES: Dict[str, Callable[[Data], str]] = {"Settings": _settings, "What ddpfix said": _lines, "Fixes": _fixes}
