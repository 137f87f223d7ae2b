"""Ranks that gloo cannot connect do not wait a day for it, and all of them know."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import ranks

# A rank whose default group is taken for one that gloo has not connected. With "no" rank 1 has an interface that is not
# there; with "late" it comes when gloo would have given it up.
PROGRAM = """
import os
import sys
import time
from datetime import timedelta
from torch import distributed
import ddpfix.auto
from ddpfix.groups import internals
from ddpfix.uneven import async_sum
distributed.init_process_group("gloo")
rank = distributed.get_rank()
internals.has_gloo = lambda group: False
async_sum._CONNECT = 4.0
if sys.argv[1] == "no" and rank:
    os.environ["GLOO_SOCKET_IFNAME"] = "nowhere0"
if sys.argv[1] == "late" and rank:
    time.sleep(12)
begun = time.monotonic()
group = async_sum.cpu_group(timedelta(hours=24))
again = async_sum.cpu_group(timedelta(hours=24))
sums = None if group is None else async_sum.PendingSum([rank, 1], group).result()
print(f"rank {rank}: {sums} {again is group} {time.monotonic() - begun < 60}", flush=True)
distributed.barrier()
distributed.destroy_process_group()
"""


@pytest.mark.parametrize(("connects", "sums"), [("yes", "[1, 2]"), ("late", "[1, 2]"), ("no", "None")])
def test_all_ranks_know_whether_gloo_connects_them(connects: str, sums: str, tmp_path: Path) -> None:
    (tmp_path / "connecting.py").write_text(PROGRAM)
    code, output = ranks.run([*ranks.elastic(2), "connecting.py", connects], ranks.environment({}), tmp_path, 120)
    assert code == 0, output
    for rank in range(2):
        assert f"rank {rank}: {sums} True True" in output, output
    said = [line for line in output.splitlines() if "gloo has not connected these ranks" in line]
    assert len(said) == (connects == "no") and all("GLOO_SOCKET_IFNAME" in line for line in said), output
