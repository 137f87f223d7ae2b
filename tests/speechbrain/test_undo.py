"""Undo gives back every object of the release that was there, and what is in torch's loaders stays in place."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support import ranks, undo


def test_everything_is_what_it_was() -> None:
    undo.check("speechbrain")


CODE = """
import sys
import torch.utils.data.dataloader
from ddpfix import engine
ours = engine.current()
if sys.argv[1] == "patched first":
    ours.gate.open()
import speechbrain.dataio.dataloader
ours.gate.open()
print(len(ours.places["torch.uneven"]), ours.verify())
"""


@pytest.mark.patches("torch.uneven")
def test_no_patch_is_replaced() -> None:
    # As under a launcher: speechbrain looks at the rank when it is imported.
    launched = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
    environ = ranks.with_release({"DDPFIX": "1", "DDPFIX_UNEVEN": "stop", **launched})
    for order in ("patched first", "imported first"):
        command = [sys.executable, "-W", "ignore", "-c", CODE, order]
        run = subprocess.run(command, env=environ, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        places, problems = run.stdout.strip().split(" ", 1)
        assert int(places) >= 3 and problems == "[]", f"{order}\n{run.stderr}"
