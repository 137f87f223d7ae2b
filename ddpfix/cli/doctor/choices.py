"""Settings with their sources, and what is decided about each patch; what is not understood is a finding, no end."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ddpfix.cli import plan
from ddpfix.cli.doctor import activation, private
from ddpfix.cli.doctor.finding import BLOCKS, Problem, Section
from ddpfix.matrix import resolve, settings, untested
from ddpfix.matrix.model import Matrix
from ddpfix.matrix.settings import SETTINGS, Settings, SettingsError, switch_name

# A folder without a pyproject.toml.
_NOWHERE = Path(os.devnull)


def read(whole: Matrix, environ: Optional[Mapping[str, str]] = None) -> Tuple[Settings, List[str]]:
    """Return the settings in force without those that are refused, and why these are."""
    if environ is None:
        environ = {} if sys.flags.ignore_environment else os.environ
    errors: List[str] = []
    good: Dict[str, str] = {}
    for name, value in environ.items():
        if not name.startswith(settings.PREFIX):
            continue
        try:
            settings.read({}, whole.patches, {name: value}, _NOWHERE)
            good[name] = value
        except SettingsError as error:
            errors.append(private.text(str(error)))
    try:
        return settings.read({}, whole.patches, good), errors
    except SettingsError as error:
        errors.append(private.text(str(error)))
    return settings.read({}, whole.patches, good, _NOWHERE), errors


def look_at_settings(whole: Matrix, values: Settings, errors: List[str]) -> Section:
    """Return the section of settings: each one's value and source, the switches of patches, and what is refused."""
    found: Dict[str, Any] = {
        "values": {s.name: {"value": values[s.name], "from": values.sources.get(s.name, "default")} for s in SETTINGS},
        "switches": {p: {"value": v, "from": values.sources.get(p, "")} for p, v in values.switches.items()},
        "refused": errors,
    }
    cure = "correct or unset it: until then ddpfix is off and python -m ddpfix run refuses to start"
    earlier = [Problem("warning", "settings", *text.split(": ", 1)) for text in map(private.text, values.gone)]
    return found, [*(Problem(BLOCKS, "settings", error, cure) for error in errors), *earlier]


def look_at_patches(whole: Matrix, toolkits: Mapping[str, Optional[str]], values: Settings) -> Section:
    """Return the section of patches: the plan for each, and what was done if ddpfix is active in this process."""
    decisions = resolve.resolve(whole, toolkits, values)
    entries = [plan.as_data(whole, decision) for decision in decisions]
    running = activation.engine()
    states = {each.id: each for each in running.report().patches} if running is not None else {}
    findings = [_untested(text) for text in untested.lines(whole, decisions).values()]
    for entry in entries:
        state = states.get(entry["id"])
        entry["state"] = str(state.state) if state is not None else None
        if state is not None and state.state == "failed":
            text = f"{entry['id']} could not be applied: {private.text(state.reason)}"
            cure = f"please report this; {switch_name(entry['id'])}=0 silences it"
            findings.append(Problem("warning", "patches", text, cure))
    return {"entries": entries}, findings


def _untested(text: str) -> Problem:
    """Return the finding of a release that was not tested; its line has the cure behind the semicolon."""
    what, _, cure = text.partition("; ")
    return Problem("warning", "patches", what, cure or "if it fails, install the nearest release")
