"""``wenet_join`` of real trees under DeepSpeed's name, on two ranks of which one has fewer batches.

3.0.0 and 3.0.1 have no other engine that asks it; :mod:`tests.wenet.test_uneven` trains under FSDP from 3.1.0 on.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Dict

import pytest

from tests.support import ranks
from tests.wenet import trees

SCRIPT = """\
import datetime
from tests.wenet import epochs
epochs.load()
from torch import distributed
from wenet.utils import executor
distributed.init_process_group("gloo")
rank = distributed.get_rank()
group = distributed.new_group(backend="gloo", timeout=datetime.timedelta(seconds=2))
told = []
# The second rank has two batches, the first one more.
for batch in range(3 - rank):
    told.append(executor.wenet_join(group, {"train_engine": "deepspeed", "batch_idx": batch}))
print(f"TOLD {rank} {told}", flush=True)
distributed.barrier()
"""
LOST = "ProcessGroup' object has no attribute 'options'"
# In its third batch the first rank is alone.
RIGHT = {"0": "[False, False, True]", "1": "[False, False]"}


def environ(tree: Path, **more: str) -> Dict[str, str]:
    """Of a rank."""
    found = trees.environ(tree, OMP_NUM_THREADS="1", **more)
    # Where the test's own interpreter finds what is beside it.
    found["PYTHONPATH"] = os.pathsep.join([found["PYTHONPATH"], *filter(None, sys.path[:1])])
    return found


@pytest.mark.patches("wenet.barrier")
@pytest.mark.parametrize("tree", trees.real(trees.since("v3.0.0")))
def test_a_rank_with_more_batches_is_told_to_stop(tree: Path, tmp_path: Path) -> None:
    script = tmp_path / "join.py"
    script.write_text(SCRIPT)
    command = [*ranks.elastic(2), str(script)]
    code, printed = ranks.run(command, environ(tree), tmp_path, 120)
    assert code != 0 and LOST in printed and "TOLD" not in printed, printed[-4000:]
    code, printed = ranks.run(command, environ(tree, DDPFIX="1", DDPFIX_UNEVEN="off"), tmp_path, 120)
    assert code == 0 and dict(re.findall(r"TOLD (\d) (\[.*\])", printed)) == RIGHT, printed[-4000:]
