"""The command line of ``ddpfix report``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Dict, List

from ddpfix import _switch

_NEEDED = "pip install 'ddpfix[report]'"


class ReportError(Exception):
    """The report cannot be made; the message is for the user."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    report = commands.add_parser(
        "report",
        help="make an HTML page of a traced run (DDPFIX_TRACE=DIR), or compare two",
        description="Make one self-contained HTML page of a trace (DDPFIX_TRACE=DIR), or of two side by side.",
    )
    report.add_argument("folders", metavar="DIR", nargs="+", type=Path, help="trace folder; give two to compare them")
    report.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="output page [DIR/report.html; with two traces, comparison.html in the second]",
    )
    report.add_argument(
        "--json", metavar="FILE", help="write the data as JSON (- for standard output); add -o for the page"
    )


def show(options: argparse.Namespace) -> int:
    """Make what was asked for; returns 0, or 2 after one line that says what is wrong."""
    from ddpfix.trace.reader import TraceError

    try:
        return _show(options)
    except (TraceError, ReportError) as error:
        _switch.say(str(error))
        return 2
    except OSError as error:
        _switch.say(f"{error.filename}: {error.strerror or error}")
        return 2


def _show(options: argparse.Namespace) -> int:
    if len(options.folders) > 2:
        raise ReportError(f"report takes one trace or two, not {len(options.folders)}")
    wants_page = options.output is not None or options.json is None
    # Before minutes of reading, rather than after.
    script = _plotly() if wants_page else ""
    runs = load(options.folders)
    if options.json is not None:
        _write_json(options.json, runs)
    if wants_page:
        from ddpfix.cli.report import page

        target = options.output or options.folders[-1] / ("report.html" if len(runs) == 1 else "comparison.html")
        target.write_text(page.make(runs, script), encoding="utf-8")
        # With --json - the standard output is for the data.
        (sys.stderr if options.json == "-" else sys.stdout).write(f"{_switch.printable(str(target))}\n")
    return 0


def load(folders: List[Path]) -> List[Dict[str, Any]]:
    """Return the data of each trace, by names that differ, with findings."""
    from ddpfix.cli.report import findings, summary

    runs = [summary.load(folder) for folder in folders]
    if len({data["name"] for data in runs}) < len(runs):
        for number, data in enumerate(runs, 1):
            data["name"] = f"{data['name']} ({number})"
    return [{**data, "findings": findings.rows(data)} for data in runs]


def _write_json(target: str, runs: List[Dict[str, Any]]) -> None:
    from ddpfix.cli.report.compare import compare

    whole: Dict[str, Any] = {"version": 1, "runs": runs}
    if len(runs) == 2:
        whole["comparison"] = [
            {"name": each.name.strip(), "one": each.one, "two": each.two, "ratio": each.ratio}
            for each in compare(*runs)
        ]
    text = json.dumps(whole, allow_nan=False) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        Path(target).write_text(text, encoding="utf-8")


def _plotly() -> str:
    """Return the source of plotly.js, as the Python package brings it."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ReportError(f"the page needs plotly: {_NEEDED} (--json FILE works without it)") from None
    script: str = get_plotlyjs()
    return script
