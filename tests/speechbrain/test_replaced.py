"""SpeechBrain replaces methods of torch's loaders when it is imported: what ddpfix has there stays in place."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import torch.utils.data.dataloader
import speechbrain.dataio.dataloader
from ddpfix import engine
ours = engine.current()
print(len(ours.places["torch.samples"]), len(ours.places["torch.uneven"]), ours.verify())
"""


@pytest.mark.patches("torch.samples", "torch.uneven")
def test_no_patch_is_replaced() -> None:
    # As under a launcher: speechbrain looks at the rank when it is imported.
    environ = {**os.environ, "DDPFIX": "1", "DDPFIX_UNEVEN": "stop", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", CODE], env=environ, capture_output=True, text=True)
    places, more, problems = run.stdout.strip().split(" ", 2)
    assert int(places) >= 4 and int(more) >= 3 and problems == "[]", run.stderr
