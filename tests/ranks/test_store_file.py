"""A file in which ranks meet, left by a run that was killed: the next one fails or hangs, and the file is named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import List

import pytest
from ddpfix.patches.torch.jobs import init_file

from tests.support import ranks

pytestmark = [
    pytest.mark.patches("torch.init_file"),
    pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="only Linux tells when a process has begun"),
]
# As WeNet's recipes start their ranks, but for the time that they wait.
SCRIPT = """
import os, signal, sys
if os.environ.get("TEST_DDPFIX"):
    import ddpfix.auto
    from ddpfix.patches.torch.jobs import init_file
    init_file._PATIENCE = 2.0
from torch import distributed
distributed.init_process_group("gloo", init_method="file://" + sys.argv[2], world_size=2, rank=int(sys.argv[1]))
print("is up", flush=True)
if sys.argv[3] == "killed":
    distributed.barrier()
    os.kill(os.getpid(), signal.SIGKILL)
"""
NAMED = "last written at"


def run(folder: Path, end: str = "", **environ: str) -> List[str]:
    """What two ranks said; they are ended after a while if they hang."""
    words = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    made = []
    for rank in (0, 1):
        made.append(
            subprocess.Popen(
                [*words, str(rank), str(folder / "ddp_init"), end],
                env=ranks.environment(environ),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        # The first rank has read what is there before the second one writes.
        time.sleep(3)
    said = []
    for process in made:
        try:
            said.append(process.communicate(timeout=25)[0])
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            said.append(process.communicate()[0])
    return said


@pytest.mark.sampled(inside=False, cells=True)
def test_a_group_on_an_old_file_does_not_come_up_and_the_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ddp_init"
    fresh = run(tmp_path, "killed", TEST_DDPFIX="1")
    assert file.stat().st_size and all("is up" in one and NAMED not in one for one in fresh), fresh
    left, hour_ago = file.read_bytes(), time.time() - 3600
    for environ in ({}, {"TEST_DDPFIX": "1"}):
        # Now and then gloo finds the new ranks all the same.
        for _ in range(4):
            file.write_bytes(left)
            os.utime(file, (hour_ago, hour_ago))
            said = run(tmp_path, "", **environ)
            if not all("is up" in one for one in said):
                break
        assert not all("is up" in one for one in said), said
        assert any(f"ddp_init, {NAMED}" in one for one in said) == bool(environ), said


SHARED = "/data/store"


@pytest.mark.parametrize(
    ("args", "file"), [(("gloo", f"file://{SHARED}?x=1"), SHARED), (("gloo", "env://"), None), (("gloo",), None)]
)
def test_the_file_of_a_call(args: List[str], file: str) -> None:
    assert init_file._file(tuple(args), {}) == file
    assert init_file._file((), {"init_method": args[1] if len(args) > 1 else None}) == file


def test_a_file_that_is_new_empty_or_not_there(tmp_path: Path) -> None:
    file = tmp_path / "store"
    assert init_file._about(str(file)) == init_file._about(None) == ""
    file.write_text("")
    os.utime(file, (1e9, 1e9))
    assert init_file._about(str(file)) == ""
    file.write_text("x")
    assert init_file._about(str(file)) == ""
    os.utime(file, (1e9, 1e9))
    assert "delete it before each start" in init_file._about(str(file))
