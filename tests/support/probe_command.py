"""``python -m ddpfix probe`` as a command, and its findings as data."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Dict, Mapping, Tuple

from tests.support import ranks


def run(folder: Path, environ: Mapping[str, str], *words: str, limit: float = 120) -> Tuple[int, str]:
    """The exit code, and all that was printed."""
    return ranks.run([sys.executable, "-m", "ddpfix", "probe", *words], environ, folder, limit)


def found(folder: Path, environ: Mapping[str, str], *words: str, limit: float = 120) -> Tuple[int, Dict[str, Any]]:
    """The exit code, and what was printed as JSON, behind what the script itself has printed to stderr."""
    code, text = run(folder, environ, "--json", *words, limit=limit)
    # A progress bar ends without the end of a line.
    begin = text.rfind('{\n  "complete":')
    assert begin >= 0, text[-6000:]
    data: Dict[str, Any] = json.loads(text[begin:])
    return code, {**data, "printed": text[:begin]}


def model(data: Mapping[str, Any], kind: str) -> Dict[str, Any]:
    """What was found of the one model of a class."""
    (entry,) = [each for each in data["models"] if each["model"] == kind]
    return dict(entry)


def ended_well(code: int, data: Mapping[str, Any], steps: int) -> None:
    """It was ended after so many steps, with exit code 0."""
    assert code == 0 and data["exit_code"] == 0, data["printed"][-6000:]
    assert data["complete"] and data["steps"] == steps and not data["notes"], data
