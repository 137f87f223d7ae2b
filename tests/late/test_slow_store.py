"""A rank whose messages to the store take long: the others find what it has told before the reduction, and wait."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Set

import pytest

from tests.faults import proxy
from tests.faults.inject import GONE, PORT
from tests.support import ranks

# Seconds that each message of rank 1 takes to the store: longer than a reduction, which does not pass it.
DELAY = 0.25
PROGRAM = """
import sys
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.left = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, whole):
        return self.left(self.used(x)) if whole else self.used(x)
distributed.init_process_group("gloo")
rank = distributed.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(Net(), **({"find_unused_parameters": True} if "flag" in sys.argv else {}))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
for step in range(6):
    optimizer.zero_grad()
    torch.manual_seed(step + rank)
    model(torch.randn(3, 4), rank == 0 and step % 2 == 0).square().mean().backward()
    optimizer.step()
print(*torch.cat([each.flatten() for each in model.parameters()]).tolist())
distributed.destroy_process_group()
"""


@pytest.mark.patches("torch.finalize")
def test_ranks_exchange_what_a_slow_rank_has_left_out(tmp_path: Path) -> None:
    found = {how: _run(tmp_path / how, how) for how in ("flag", "ddpfix")}
    assert found["ddpfix"] == found["flag"] and len(found["flag"]) == 1


def _tell(folder: Path, port: int) -> None:
    """Tell the proxy of the store when it is there."""
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            (folder / PORT).write_text(str(port))
            return
        time.sleep(0.05)


def _run(folder: Path, how: str) -> Set[str]:
    folder.mkdir()
    script = folder / "program.py"
    script.write_text(PROGRAM)
    environs = ranks.of_a_shell(2, {"DDPFIX": "1" if how == "ddpfix" else "0"})
    port, _ = proxy.start(folder, DELAY)
    threading.Thread(target=_tell, args=(folder, int(environs[0]["MASTER_PORT"])), daemon=True).start()
    environs[1]["MASTER_PORT"] = str(port)
    try:
        ended = ranks.side_by_side([[sys.executable, str(script), how]] * 2, environs, limit=60)
    finally:
        (folder / GONE).touch()
    assert [each.code for each in ended] == [0, 0], ended
    # gloo of torch 2.8 prints above it which rank it is.
    return {each.output.splitlines()[-1] for each in ended}
