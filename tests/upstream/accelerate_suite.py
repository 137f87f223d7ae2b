"""accelerate's own test scripts, which ship in its wheel, each on two ranks on the CPU."""

from __future__ import annotations

import re
import sys
import time
from importlib.util import find_spec
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
    return {name: _script(name, more, limit) for name in tests}


def _script(name: str, more: Dict[str, str], limit: float) -> Outcome:
    spec = find_spec("accelerate.test_utils.scripts")
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin).with_name(f"{name}.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(path)]
    begun = time.monotonic()
    code, output = ranks.run(command, ranks.environment({"ACCELERATE_USE_CPU": "1", **more}), Path.cwd(), limit)
    word = {0: "passed", 124: "hung"}.get(code, "failed")
    return Outcome(word, round(time.monotonic() - begun, 2), "" if code == 0 else output[-6000:])
