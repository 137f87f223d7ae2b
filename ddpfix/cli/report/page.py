"""The page: one HTML file that needs no network and runs no script but its own.

Everything that comes from a trace is text: it is escaped in HTML, and in the JSON that the page's script reads. A
Content-Security-Policy allows the two scripts of the page by their hashes, and no connection.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

from ddpfix.cli.report import compare, figures, findings, head, tables
from ddpfix.cli.report.figures.figure import TABLE_ROWS, Figure, Table
from ddpfix.cli.report.tables import text
from ddpfix.cli.report.words import BAD, GOOD, PLAIN, Finding

Data = Dict[str, Any]
_ASSETS = Path(__file__).with_name("assets")
_LEVELS = {BAD: "Needs attention", PLAIN: "Note", GOOD: "OK"}
_PARTS = (
    ("layers", "Skipped layers"),
    ("time", "Time"),
    ("memory", "Memory"),
    ("loss", "Loss and gradient norm"),
    ("unused", "Unused parameters"),
)


def make(runs: Sequence[Data], plotly: str) -> str:
    """Return the page as text."""
    drawn = figures.make(runs)
    specs = [_spec(number, figure) for number, each in enumerate(drawn) for figure in each]
    script = (_ASSETS / "page.js").read_text(encoding="utf-8")
    title = " against ".join(data["name"] for data in runs)
    body = _body(runs, drawn, title)
    style = (_ASSETS / "page.css").read_text(encoding="utf-8")
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy([plotly, script])}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{text(title)}: ddpfix report</title>",
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            body,
            f'<script type="application/json" id="figures">{embedded(specs)}</script>',
            f"<script>{plotly}</script>",
            f"<script>{script}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def embedded(value: Any) -> str:
    """JSON that can stand in a script element: nothing in it can end the element, or begin a comment."""
    dumped = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return dumped.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(scripts: Sequence[str]) -> str:
    hashes = [base64.b64encode(hashlib.sha256(each.encode("utf-8")).digest()).decode() for each in scripts]
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    # Plotly puts its styles into the page, and draws heatmaps as images from data.
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:;"
        " base-uri 'none'; form-action 'none'"
    )


def _spec(run: int, figure: Figure) -> Data:
    return {"id": _id(run, figure), **figure.spec}


def _id(run: int, figure: Figure) -> str:
    return f"{figure.name}-{run}"


def _body(runs: Sequence[Data], drawn: Sequence[Sequence[Figure]], title: str) -> str:
    parts = {subject: parts_of(subject, runs, drawn) for subject, _ in _PARTS}
    shown = [(subject, heading) for subject, heading in _PARTS if parts[subject]]
    links = [("findings", "Findings"), *([("ratios", "Ratios")] if len(runs) == 2 else []), *shown, *tables.PARTS]
    listed = "".join(f'<li><a href="#{name}">{text(heading)}</a></li>' for name, heading in links)
    return "\n".join(
        [
            '<a class="skip" href="#main">Skip to findings</a>',
            head.make(runs, title),
            f'<nav aria-label="Parts of this page"><ul>{listed}</ul></nav>',
            f'<main id="main" class="{"two" if len(runs) == 2 else ""}">',
            _section("findings", "Findings", tables.columns(runs, _findings)),
            _ratios(runs) if len(runs) == 2 else "",
            *(_section(subject, heading, parts[subject]) for subject, heading in shown),
            _absent(runs, [subject for subject, heading in _PARTS if not parts[subject]]),
            *(_section(name, heading, tables.make(name, runs)) for name, heading in tables.PARTS),
            "</main>",
        ]
    )


def _section(name: str, heading: str, content: str) -> str:
    title = f'<h2 id="{name}-heading">{text(heading)}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-heading">{title}{content}</section>'


def _findings(data: Data) -> str:
    return f'<ul class="findings">{"".join(map(_finding, findings.findings(data)))}</ul>'


def _finding(each: Finding) -> str:
    more = "".join(f"<li>{_line(line)}</li>" for line in each.lines)
    below = f"<ul>{more}</ul>" if more else ""
    return f'<li class="{each.level}"><strong>{_LEVELS[each.level]}:</strong> {text(each.text)}{below}</li>'


def _line(line: str) -> str:
    """Return a line below a finding: its first word stands out, and what can be pasted is code."""
    said, *code = line.split("\n")
    label, colon, rest = said.partition(": ")
    first = f'<span class="label">{text(label[:1].upper() + label[1:])}:</span> {text(rest)}' if colon else text(said)
    return first + (f"<pre><code>{text(chr(10).join(code))}</code></pre>" if code else "")


def _ratios(runs: Sequence[Data]) -> str:
    one, two = (data["name"] for data in runs)
    rows = [[each.name, *each.shown] for each in compare.compare(*runs)]
    table = tables.table(Table(["number", one, two, f"ratio ({two} : {one})"], rows), f"{one} against {two}")
    return _section("ratios", "Ratios", table)


def _absent(runs: Sequence[Data], subjects: Sequence[str]) -> str:
    """Return one sentence about the parts that no run has a figure for."""
    headings = dict(_PARTS)
    found = [f"{headings[subject].lower()} ({_why(subject, runs)})" for subject in subjects]
    return f'<p class="absent">Not shown: {text("; ".join(found))}.</p>' if found else ""


def _why(subject: str, runs: Sequence[Data]) -> str:
    reasons = {data["name"]: figures.why(subject, data) for data in runs}
    if len(set(reasons.values())) == 1:
        return next(iter(reasons.values()))
    return ", ".join(f"{name}: {reason}" for name, reason in reasons.items())


def parts_of(subject: str, runs: Sequence[Data], drawn: Sequence[Sequence[Figure]]) -> str:
    """Return the figures about one subject, those of the same name together; empty where no run has one."""
    mine = [{figure.name: figure for figure in each if figure.subject == subject} for each in drawn]
    names = list(dict.fromkeys(name for each in mine for name in each))
    if not names:
        return ""
    found = [findings.of(subject, data) for data in runs]
    groups = [_group(runs, [each.get(name) for each in mine], found, len(names) > 1) for name in names]
    return f'<div class="groups">{"".join(groups)}</div>'


def _group(
    runs: Sequence[Data], mine: Sequence[Optional[Figure]], found: Sequence[str], is_one_of_several: bool
) -> str:
    """Return the same figure of all runs; what holds for all of them stands there once."""
    there = [figure for figure in mine if figure is not None]
    shared = all((each.about, each.legend) == (there[0].about, there[0].legend) for each in there)
    title = f"<h3>{text(there[0].title)}</h3>" if is_one_of_several else ""
    about = f'<p class="about">{text(there[0].about)}</p>' if shared else ""
    cells = "".join(
        f"<p>{text(data['name'])}: not shown ({figures.why(there[0].subject, data)}).</p>"
        if figure is None
        else _figure(number, figure, said, data["name"] if len(runs) > 1 else "", shared)
        for number, (data, figure, said) in enumerate(zip(runs, mine, found))
    )
    legend = _legend(there[0]) if shared else ""
    return f'<div class="group">{title}{about}{legend}<div class="columns">{cells}</div></div>'


def _figure(run: int, figure: Figure, found: str, name: str, shared: bool) -> str:
    place = _id(run, figure)
    said = f"{figure.title}{', ' if name else ''}{name}. {found or figure.about} The table below has the numbers."
    caption = text(name) if shared else f"<strong>{text(name)}</strong> {text(figure.about)}"
    return "".join(
        [
            "<figure>",
            f"<figcaption>{caption}</figcaption>" if caption else "",
            "" if shared else _legend(figure),
            f'<div class="plot" id="{place}" role="img" tabindex="0" aria-label="{text(said)}"></div>',
            f"<details><summary>Numbers<span> of {text(figure.title)}</span></summary>{_numbers(figure)}</details>",
            "</figure>",
        ]
    )


def _legend(figure: Figure) -> str:
    if figure.is_scale:
        colours = ", ".join(key.colour for key in figure.legend)
        ends = "".join(f"<li>{text(key.meaning)}</li>" for key in figure.legend)
        bar = f'<span style="background:linear-gradient(to right, {colours})"></span>'
        return f'<div class="scale">{bar}<ul>{ends}</ul></div>'
    items = "".join(
        f'<li><span class="swatch {key.mark}" style="background:{key.colour}"></span>{text(key.meaning)}</li>'
        for key in figure.legend
    )
    return f'<ul class="legend">{items}</ul>' if items else ""


def _numbers(figure: Figure) -> str:
    left = len(figure.table.rows) - TABLE_ROWS
    more = f"<p>{left:,} more rows with --json.</p>" if left > 0 else ""
    return tables.table(Table(figure.table.headings, figure.table.rows[:TABLE_ROWS]), figure.title) + more
