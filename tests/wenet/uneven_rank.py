"""One rank, forked from a process that imports a tree of WeNet once, then runs each scenario in a forked child.

Scenarios for fewer ranks than there are leave the last ones out.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Dict

from tests.support import serving


def run(scenario: Dict[str, Any], folder: Path) -> None:
    """Run one scenario in this (forked) process."""
    from tests.wenet import epochs, step_time

    scenario["found"].update(left_out=scenario["size"] <= serving.RANK)
    if scenario["found"]["left_out"]:
        return
    os.environ["WORLD_SIZE"] = str(scenario["size"])
    if scenario["settings"] is None:
        epochs.run(scenario, folder / scenario["name"])
        return
    import ddpfix
    from ddpfix.ranks.failures import sentinel

    original = epochs.patched()
    ddpfix.activate(**scenario["settings"])
    sentinel.PERIOD = 0.2
    if scenario["name"] == "time":
        step_time.run(scenario, folder, original["train"])
        return
    scenario["found"].update(changed=[name for name, raw in epochs.patched().items() if raw is not original[name]])
    epochs.run(scenario, folder / scenario["name"])
    scenario["found"].update(problems=ddpfix.deactivate())
    scenario["found"].update(left=[name for name, raw in epochs.patched().items() if raw is not original[name]])


def main() -> None:
    serving.dynamo()

    sys.path.insert(0, os.environ["TREE"])
    from tests.wenet import epochs

    epochs.load()
    serving.serve(Path(sys.argv[1]), run)


if __name__ == "__main__":
    main()
