"""The page: one HTML file that needs no network and runs no script but its own.

Everything that comes from a trace is text: it is escaped in HTML, and in the JSON that the page's script reads. A
Content-Security-Policy allows the two scripts of the page by their hashes, and no connection.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from pathlib import Path
from typing import Any, Dict, List, Sequence

from ddpfix import __version__
from ddpfix.cli.report import compare, figures, findings, tables, words
from ddpfix.cli.report.figures.figure import TABLE_ROWS, Figure, Table

Data = Dict[str, Any]
_ASSETS = Path(__file__).with_name("assets")
_LEVELS = {findings.BAD: "Look at this", findings.PLAIN: "To know", findings.GOOD: "Fine"}
_PARTS = (
    ("layers", "Layers that were skipped"),
    ("time", "Time of each rank"),
    ("memory", "Memory"),
    ("unused", "Unused parameters"),
    ("loss", "Loss"),
)


def make(runs: Sequence[Data], plotly: str) -> str:
    """Return the page as text.

    Args:
        runs: the data of one run, or of two.
        plotly: the source of plotly.js.
    """
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


def text(value: Any) -> str:
    """Escaped for HTML, also inside of an attribute."""
    return html.escape(str(value), quote=True)


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
    return {"id": _id(run, figure), **figure.spec, "choice": figure.choice[2] if figure.choice else None}


def _id(run: int, figure: Figure) -> str:
    return f"{figure.name}-{run}"


def _body(runs: Sequence[Data], drawn: Sequence[Sequence[Figure]], title: str) -> str:
    parts = [_part(subject, heading, runs, drawn) for subject, heading in _PARTS]
    shown = [(subject, heading) for (subject, heading), part in zip(_PARTS, parts) if part]
    links = [("findings", "Findings"), *([("ratios", "Ratios")] if len(runs) == 2 else []), *shown, *tables.PARTS]
    listed = "".join(f'<li><a href="#{name}">{text(heading)}</a></li>' for name, heading in links)
    return "\n".join(
        [
            '<a class="skip" href="#main">To the findings</a>',
            "<header>",
            f"<h1>{text(title)}</h1>",
            f"<p>A report of ddpfix {text(__version__)}. {' '.join(_intro(data) for data in runs)}</p>",
            '<button type="button" id="theme">Dark colours</button>',
            "</header>",
            f'<nav aria-label="Parts of this page"><ul>{listed}</ul></nav>',
            '<main id="main">',
            _section("findings", "Findings", _columns(runs, [_findings(data) for data in runs])),
            _ratios(runs) if len(runs) == 2 else "",
            *parts,
            *(
                _section(name, heading, _columns(runs, [tables.make(name, d) for d in runs]))
                for name, heading in tables.PARTS
            ),
            "</main>",
        ]
    )


def _intro(data: Data) -> str:
    return text(f"{data['name']}: {words.count(data['ranks'], 'rank')}, {words.count(data['steps'], 'step')}.")


def _section(name: str, heading: str, content: str) -> str:
    title = f'<h2 id="{name}-heading">{text(heading)}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-heading">{title}{content}</section>'


def _columns(runs: Sequence[Data], contents: Sequence[str]) -> str:
    """Return a part below a heading for each run, beside each other where the screen is wide enough."""
    if len(runs) == 1:
        return contents[0]
    parts = [f"<div><h3>{text(data['name'])}</h3>{content}</div>" for data, content in zip(runs, contents)]
    return f'<div class="columns">{"".join(parts)}</div>'


def _findings(data: Data) -> str:
    items = [
        f'<li class="{each.level}"><strong>{_LEVELS[each.level]}:</strong> {text(each.text)}</li>'
        for each in findings.findings(data)
    ]
    return f'<ul class="findings">{"".join(items)}</ul>'


def _ratios(runs: Sequence[Data]) -> str:
    one, two = (data["name"] for data in runs)
    rows = [[each.name, *each.shown] for each in compare.compare(*runs)]
    table = tables.table(Table(["number", one, two, f"ratio ({two} : {one})"], rows), f"{one} against {two}")
    return _section("ratios", "Ratios", table)


def _part(subject: str, heading: str, runs: Sequence[Data], drawn: Sequence[Sequence[Figure]]) -> str:
    """Return the figures about one subject; empty where no run has one."""
    contents: List[str] = []
    for number, (data, mine) in enumerate(zip(runs, drawn)):
        found = findings.of(subject, data)
        shown = [_figure(number, figure, found, data["name"]) for figure in mine if figure.subject == subject]
        said = f"<p>{text(found)}</p>" if found else ""
        contents.append(said + "".join(shown) if shown else f"{said}<p>The trace has nothing to draw here.</p>")
    has_any = any(figure.subject == subject for mine in drawn for figure in mine)
    return _section(subject, heading, _columns(runs, contents)) if has_any else ""


def _figure(run: int, figure: Figure, found: str, name: str) -> str:
    place = _id(run, figure)
    said = f"{figure.title}, {name}. {found} The numbers are in the table below."
    legend = "".join(
        f'<li><span class="swatch" style="background:{colour}"></span>{text(meaning)}</li>'
        for colour, meaning in figure.legend
    )
    return "".join(
        [
            f'<figure aria-labelledby="{place}-title">',
            f'<figcaption><strong id="{place}-title">{text(figure.title)}</strong> {text(figure.about)}</figcaption>',
            _choice(place, figure),
            f'<div class="plot" id="{place}" role="img" tabindex="0" aria-label="{text(said)}"></div>',
            f'<ul class="legend">{legend}</ul>' if legend else "",
            f"<details><summary>The numbers: {text(figure.title)}</summary>{_numbers(figure)}</details>",
            "</figure>",
        ]
    )


def _choice(place: str, figure: Figure) -> str:
    if figure.choice is None:
        return ""
    label, names, chosen = figure.choice
    options = "".join(
        f'<option value="{number}"{" selected" if number == chosen else ""}>{text(name)}</option>'
        for number, name in enumerate(names)
    )
    return f'<p><label for="{place}-choice">{text(label)}</label> <select id="{place}-choice">{options}</select></p>'


def _numbers(figure: Figure) -> str:
    left = len(figure.table.rows) - TABLE_ROWS
    more = f"<p>{left:,} rows more are in what --json writes.</p>" if left > 0 else ""
    return tables.table(Table(figure.table.headings, figure.table.rows[:TABLE_ROWS]), figure.title) + more
