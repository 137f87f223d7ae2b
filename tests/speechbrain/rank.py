"""One rank, which imports SpeechBrain once, then runs each scenario in a forked child."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Dict

from tests.support import serving


def run(scenario: Dict[str, Any], folder: Path) -> None:
    """Run one scenario in this (forked) process."""
    from tests.speechbrain.recorder import Recorder

    arguments = [word.replace("=RANK", f"={os.environ['RANK']}") for word in scenario["arguments"]]
    Recorder(scenario["found"]).run(scenario, arguments)


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
