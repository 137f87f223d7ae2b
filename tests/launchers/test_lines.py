"""Each line once, from rank 0, whichever launcher started the ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Dict, List

import pytest

from ddpfix import log
from tests.support import ranks

PROGRAM = Path(__file__).with_name("spawned.py")
LAUNCHERS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "LOCAL_RANK")


@pytest.mark.parametrize("way", ["spawn", pytest.param("lightning", marks=pytest.mark.sampled(inside=False))])
def test_lines_of_ranks_that_no_torchrun_has_started_stand_once(way: str, tmp_path: Path) -> None:
    if way == "lightning":
        pytest.importorskip("lightning")
    words = [sys.executable, str(PROGRAM), way, str(tmp_path)]
    ended = subprocess.run(words, env=ranks.environment(), capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    lines = [line for line in ended.stderr.splitlines() if line.startswith("ddpfix")]
    assert any("fixes in use for" in line for line in lines) and any("got no gradient" in line for line in lines), (
        ended.stderr
    )
    assert len(lines) == len(set(lines)), ended.stderr


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_launcher_says_which_rank_this_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in LAUNCHERS:
        monkeypatch.delenv(each, raising=False)
    assert log.first_rank()
    monkeypatch.setenv(name, "1")
    assert not log.first_rank()
    monkeypatch.setenv("RANK", "0")
    assert log.first_rank()


_SETTING, _SWITCH = {"DDPFIX": "1", "DDPFIX_UNUSED": "perhaps"}, {"DDPFIX": "perhaps"}


@pytest.mark.skipif(
    sys.version_info < (3, 10), reason="sys.orig_argv, which tells what a child is, came with Python 3.10"
)
@pytest.mark.parametrize(
    ("words", "wrong", "said"),
    [
        # The launcher, and the first of its ranks; not the other rank, and not the children of ranks.
        (ranks.elastic(2), _SETTING, 2),
        pytest.param(ranks.elastic(2), _SWITCH, 2, marks=pytest.mark.sampled(inside=False)),
        # The program, and one of its children: it may not have imported torch itself. Each reads the switch.
        pytest.param([sys.executable], _SETTING, 2, marks=pytest.mark.sampled(inside=False)),
        ([sys.executable], _SWITCH, 1),
    ],
    ids=["torchrun", "torchrun-switch", "spawn", "spawn-switch"],
)
def test_why_nothing_is_done_is_not_said_by_every_process(words: List[str], wrong: Dict[str, str], said: int) -> None:
    environ = {name: value for name, value in ranks.environment(wrong).items() if name not in LAUNCHERS}
    ended = subprocess.run([*words, str(PROGRAM)], env=environ, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0 and "trained" in ended.stdout, ended.stderr
    lines = [line for line in ended.stderr.splitlines() if line.startswith("ddpfix")]
    assert len(lines) == said and all(
        "ddpfix: DDPFIX" in line and "ddpfix is OFF in this process" in line for line in lines
    ), ended.stderr
