"""The head of the page: the command, when and how fast it ran, with what, and what ddpfix did, for each run."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ddpfix import __version__
from ddpfix.cli.report import compare, words
from ddpfix.cli.report.tables import text

Data = Dict[str, Any]
# Lines of ddpfix that the sentence has; the part "ddpfix" has all.
_SAID = 3
# Later than this no trace was written, whatever a file says.
_LATEST = 2**33


def make(runs: Sequence[Data], title: str) -> str:
    """Return the head as HTML; what all runs have in common stands there once."""
    facts = [_facts(data) for data in runs]
    shared = [each for each in facts[0] if len(runs) > 1 and all(each in others for others in facts)]
    own = [[each for each in mine if each not in shared] for mine in facts]
    heads = "".join(_run(data, mine, len(runs) > 1) for data, mine in zip(runs, own))
    return (
        f'<header><div class="title"><h1>{text(title)} <small>ddpfix report</small></h1>'
        '<button type="button" id="theme">Dark colours</button></div>'
        f'{_list(shared)}<div class="heads">{heads}</div></header>'
    )


def _run(data: Data, facts: Sequence[Tuple[str, str]], is_named: bool) -> str:
    name = f'<p class="name"><strong>{text(data["name"])}</strong></p>' if is_named else ""
    return f'<div class="head">{name}{_list(facts)}<p class="did">{text(did(data))}</p></div>'


def _list(facts: Sequence[Tuple[str, str]]) -> str:
    shown = "".join(
        f'<div class="{label.lower()}"><dt>{label}</dt><dd>{text(value)}</dd></div>' for label, value in facts
    )
    return f"<dl>{shown}</dl>" if shown else ""


def _facts(data: Data) -> List[Tuple[str, str]]:
    """Return what ran, when, and how fast; what the trace does not have is left out."""
    environment = data["environment"]
    hosts = [host for host in environment["hosts"] if host]
    ranks = f"{data['ranks']:,}"
    if data["world_size"] > data["ranks"]:
        ranks += f" of {data['world_size']:,}"
    rate = compare.rate(data) if data["steps"] > 1 else None
    speed = f"{rate:,.3g} step{'' if f'{rate:.3g}' == '1' else 's'}/s" if rate else ""
    if rate and data["samples_a_step"]:
        speed += f", {rate * data['samples_a_step']:,.3g} samples/s"
    epochs = [each["epoch"] for each in data["epochs"]]
    found = [
        ("Command", _command(environment.get("command") or "")),
        ("Started", _moment(environment.get("started"))),
        ("Duration", _duration(environment)),
        ("Steps", f"{data['steps']:,}"),
        # A sampler whose epoch is never set stays at 0.
        ("Epochs", words.span(epochs[0], epochs[-1]) if any(epochs) else ""),
        ("Speed", speed),
        ("Ranks", f"{ranks} on {words.count(len(hosts), 'host')}" if hosts else ranks),
        ("Versions", ", ".join(f"{name} {version}" for name, version in _versions(environment) if version)),
    ]
    return [(label, value) for label, value in found if value]


def _command(command: str) -> str:
    """Return the command with the script's name in place of its path, which the part on ranks has."""
    script, space, rest = command.partition(" ")
    return f"{script.rpartition('/')[2]}{space}{rest}"


def _versions(environment: Data) -> List[Tuple[str, str]]:
    toolkits = environment.get("toolkits", {})
    named = ("torch", *sorted(name for name in toolkits if name != "torch"))
    found = [(name, environment.get("torch") if name == "torch" else toolkits[name]) for name in named]
    return [*found, ("Python", environment.get("python", ""))]


def _moment(seconds: Optional[float]) -> str:
    if not _is_date(seconds):
        return ""
    return datetime.fromtimestamp(seconds or 0.0, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def _is_date(seconds: Optional[float]) -> bool:
    return seconds is not None and 0 < seconds < _LATEST


def _duration(environment: Data) -> str:
    """Return the time from the start of the trace to its last line."""
    started: Any = environment.get("started")
    until: Any = environment.get("until")
    if not _is_date(started) or not _is_date(until) or until <= started:
        return ""
    seconds = until - started
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min {int(seconds % 60)} s"


def did(data: Data) -> str:
    """Return in one sentence what ddpfix did in a run."""
    version = data["environment"].get("ddpfix") or __version__
    ready = sum(each["state"] in ("applied", "registered") for each in data["patches"])
    lines = [each["text"] for each in data["events"] if each["level"] == "info"]
    # The line at the start, whose number is here already.
    said = [text.rstrip(".") for text in lines if not text.startswith("ddpfix ")]
    head = f"ddpfix {version} had {ready:,} fix{'' if ready == 1 else 'es'} ready"
    if not said:
        return f"{head} and logged no change."
    more = f"; {words.count(len(said) - _SAID, 'more line')} below" if len(said) > _SAID else ""
    return f"{head} and logged: {'; '.join(said[:_SAID])}{more}."
