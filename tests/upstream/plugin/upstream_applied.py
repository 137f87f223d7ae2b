"""A plugin of pytest for the suites of toolkits: at the end of each process, which patches of ddpfix were applied."""

import os
import sys


def pytest_sessionfinish() -> None:
    folder = os.environ.get("UPSTREAM_APPLIED")
    engine = sys.modules.get("ddpfix.engine")
    if folder and engine is not None:
        applied = [patch.id for patch in engine.report().patches if patch.state in ("applied", "registered")]
        with open(os.path.join(folder, str(os.getpid())), "w", encoding="utf-8") as file:
            file.write("\n".join(applied))
