"""One rank, which imports SpeechBrain once, then runs each scenario in a forked child."""

from __future__ import annotations

import os
import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Dict

from tests.support import serving


def run(scenario: Dict[str, Any], folder: Path) -> None:
    """Run one scenario in this (forked) process."""
    from tests.speechbrain.recorder import Recorder

    recorder = Recorder(scenario["found"])
    if scenario.get("settings"):
        import ddpfix

        ddpfix.activate(**scenario["settings"])
    recorder.attach()
    if scenario.get("before"):
        exec(compile(scenario["before"], "before", "exec"), {"recorder": recorder, "rank": serving.RANK})
    rank = os.environ["RANK"]
    sys.argv = [scenario["script"], *(word.replace("=RANK", f"={rank}") for word in scenario["arguments"])]
    sys.path[0] = str(Path(scenario["script"]).parent)
    runpy.run_path(scenario["script"], run_name="__main__")


def main() -> None:
    # This toolkit looks at the rank when it is imported.
    serving.fork_ranks(Path(sys.argv[1]))
    import speechbrain  # noqa: F401

    serving.dynamo()

    from tests.speechbrain import recipes, stand_in

    stand_in.apply(recipes.release())
    import_module(recipes.wrapper(recipes.family()).rpartition(".")[0])
    serving.serve(Path(sys.argv[1]), run)


if __name__ == "__main__":
    main()
