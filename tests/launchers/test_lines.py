"""Each line once, from rank 0, whichever launcher started the ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddpfix import log
from tests.support import ranks

PROGRAM = Path(__file__).with_name("spawned.py")
LAUNCHERS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "LOCAL_RANK")


@pytest.mark.parametrize("way", ("spawn", "lightning"))
def test_lines_of_ranks_that_no_torchrun_has_started_stand_once(way: str, tmp_path: Path) -> None:
    if way == "lightning":
        pytest.importorskip("lightning")
    words = [sys.executable, str(PROGRAM), way, str(tmp_path)]
    ended = subprocess.run(words, env=ranks.environment(), capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    lines = [line for line in ended.stderr.splitlines() if line.startswith("ddpfix")]
    assert any("fixes ready for" in line for line in lines) and any("got no gradient" in line for line in lines), (
        ended.stderr
    )
    assert len(lines) == len(set(lines)), ended.stderr


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_launcher_says_which_rank_this_is(name: str, launched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert log.first_rank()
    monkeypatch.setenv(name, "1")
    assert not log.first_rank()
    monkeypatch.setenv("RANK", "0")
    assert log.first_rank()
