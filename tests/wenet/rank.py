"""One rank, forked from a process that imports the models of a tree once, then runs each scenario in a forked child."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Dict

from tests.support import serving

PARTS = (
    "utils.config",
    "utils.train_utils",
    "{}transformer.encoder",
    "{}transformer.decoder",
    "{}paraformer.layers",
    "{}transformer.asr_model",
    "{}branchformer.encoder",
    "{}branchformer.encoder_layer",
    "{}e_branchformer.encoder",
    "{}e_branchformer.encoder_layer",
)


def run(scenario: Dict[str, Any], folder: Path) -> None:
    """Run one scenario in this (forked) process."""
    from tests.wenet import epochs, scenarios

    if scenario["function"] == "uneven":
        epochs.scenario(scenario, folder)
        return
    if scenario["settings"] is not None:
        import ddpfix

        ddpfix.activate(**scenario["settings"])
    scenarios.FUNCTIONS[scenario["function"]](scenario, scenario["found"])


def main() -> None:
    serving.dynamo()

    sys.path.insert(0, os.environ["TREE"])
    from tests.wenet import epochs, tiny_model

    epochs.load()
    inside = "models." if tiny_model.home() != "wenet" else ""
    for name in (f"wenet.{part.format(inside)}" for part in PARTS):
        if _there(name):
            import_module(name)
    serving.serve(Path(sys.argv[1]), run)


def _there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


if __name__ == "__main__":
    main()
