"""accelerate's own test scripts, which ship in its wheel, each on two ranks on the CPU."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Dict, List, Sequence

from tests.support import ranks
from tests.upstream.outcomes import Outcome

SCRIPTS = ("test_sync", "test_script", "test_ops")
QUICK = ("test_sync",)
# Seconds for one script; they take 15 on two idle cores.
LIMIT = 240.0


def names(pattern: str = "") -> List[str]:
    return [name for name in SCRIPTS if re.search(pattern, name)]


def run(tests: Sequence[str], more: Dict[str, str], limit: float = LIMIT) -> Dict[str, Outcome]:
    """The outcome of each script with these environment variables."""
    found, environ = {}, ranks.environment({"ACCELERATE_USE_CPU": "1", **more})
    for name in tests:
        begun = time.monotonic()
        command = [*ranks.elastic(2), "-m", f"accelerate.test_utils.scripts.{name}"]
        code, output = ranks.run(command, environ, Path.cwd(), limit)
        word = {0: "passed", ranks.OVERDUE: "hung"}.get(code, "failed")
        found[name] = Outcome(word, round(time.monotonic() - begun, 2), "" if code == 0 else output[-6000:])
    return found
