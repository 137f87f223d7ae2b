"""One rank, which imports fastNLP once, then runs each scenario in a forked child."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict

from tests.support import serving


def run(scenario: Dict[str, Any], folder: Path) -> None:
    """Run one scenario in this (forked) process."""
    from tests.fastnlp import job

    if scenario.get("settings"):
        import ddpfix

        ddpfix.activate(**scenario["settings"])
    job.train(scenario, scenario["found"])


def main() -> None:
    # This toolkit looks at the rank when it is imported.
    serving.fork_ranks(Path(sys.argv[1]))
    import fastNLP  # noqa: F401

    serving.dynamo()

    from tests.fastnlp import stand_in

    stand_in.apply()
    serving.serve(Path(sys.argv[1]), run)


if __name__ == "__main__":
    main()
