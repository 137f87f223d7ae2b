"""``ddpfix doctor --ranks`` on real ranks: what it measures, who differs, who is missing; nobody waits for ever."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Sequence

import pytest

from tests.support import ranks
from tests.support.ranks import Ended

rest = pytest.mark.sampled(inside=False, cells=True)
DOCTOR = ("-m", "ddpfix", "doctor", "--ranks")


def start(numbers: Sequence[int], folder: Path, *words: str, size: int = 2, **each: Dict[str, str]) -> List[Ended]:
    """Run some ranks of a job without a launcher.

    Args:
        numbers: the ranks that are started.
        folder: where.
        words: of the command, or what stands in place of it.
        size: the world size.
        each: more variables of a rank, by ``rank0`` and so on.
    """
    command = [sys.executable, *(words if words and words[0] in ("-c", "-m") else (*DOCTOR, *words))]
    environs = ranks.of_a_shell(size)
    chosen = [{**environs[number], **each.get(f"rank{number}", {})} for number in numbers]
    return ranks.side_by_side([command] * len(numbers), chosen, folder, 120)


def texts(report: Dict[str, Any]) -> Dict[str, Any]:
    return {each["text"]: each for each in report["findings"]}


@pytest.mark.sampled(inside=False, cells=True)
def test_ranks_that_differ_are_named_and_the_sum_is_right(tmp_path: Path) -> None:
    first, second = start([0, 1], tmp_path, "--json", rank0={"DDPFIX": "1"}, rank1={"DDPFIX_UNUSED": "find"})
    assert (first.code, second.code, second.output) == (1, 0, ""), (first, second)
    report = json.loads(first.output)
    assert (report["world_size"], report["backend"], len(report["ranks"])) == (2, "gloo", 2)
    assert 0 < report["all_reduce_ms"]["least"] <= report["all_reduce_ms"]["most"]
    found = texts(report)
    assert "DDPFIX differs: on on rank 0, not set on rank 1" in found
    # A job would end because of it.
    assert found["DDPFIX_UNUSED differs: auto on rank 0, find on rank 1"]["level"] == "blocks"
    assert not any("wrong sum" in text for text in found)


# As gloo of torch 2.8 does: by the descriptor, past Python.
CHATTY = """
import os, sys
from torch import distributed
from ddpfix.cli import main
plain = distributed.init_process_group

def chatty(*args, **kwargs):
    os.write(1, b"[Gloo] Rank 0 is connected\\n")
    return plain(*args, **kwargs)

distributed.init_process_group = chatty
code = main.main(["doctor", "--ranks", "--json"])
os.write(1, b"\\nthe end\\n")
sys.exit(code)
"""


@pytest.mark.sampled(inside=False, cells=True)
def test_what_libraries_print_is_not_in_the_report(tmp_path: Path) -> None:
    first, second = start([0, 1], tmp_path, "-c", CHATTY)
    report, _, end = first.output.rpartition("\n\nthe end\n")
    assert json.loads(report)["world_size"] == 2 and end == "", first.output
    assert second.output == "\nthe end\n"
    assert "[Gloo] Rank 0 is connected" in first.errors and "[Gloo]" in second.errors


@rest
@pytest.mark.parametrize("number", [0, 1])
def test_a_rank_that_does_not_come_is_not_waited_for(number: int, tmp_path: Path) -> None:
    begun = time.monotonic()
    (alone,) = start([number], tmp_path, "--limit", "2")
    assert alone.code == 1 and not alone.output and time.monotonic() - begun < 60
    assert f"ddpfix: rank {number}: " in alone.errors and "check that each rank was started" in alone.errors


@rest
def test_under_torchrun_all_is_right(tmp_path: Path) -> None:
    code, output = ranks.run([*ranks.elastic(2), *DOCTOR], ranks.environment(), tmp_path, 120)
    assert code == 0, output
    assert "doctor, 2 ranks, backend gloo" in output and "all_reduce of 25 MB" in output
    assert "blocks:" not in output


@rest
@pytest.mark.parametrize("more", [{"DDPFIX": "1"}, {"DDPFIX": "1", "DDPFIX_LOG": "debug"}], ids=["on", "debug"])
def test_under_ddpfix(more: Dict[str, str], tmp_path: Path) -> None:
    found = start([0, 1], tmp_path, "--json", rank0=more, rank1=more)
    assert [each.code for each in found] == [0, 0], found
    assert not json.loads(found[0].output)["blocked"] and "Traceback" not in found[0].errors


@rest
def test_a_rank_that_cannot_connect_says_why(tmp_path: Path) -> None:
    """An interface that is not there; the others do not wait beyond the limit."""
    begun = time.monotonic()
    found = start([0, 1, 2], tmp_path, "--limit", "8", size=3, rank1={"GLOO_SOCKET_IFNAME": "nope7"})
    assert time.monotonic() - begun < 90 and [each.code for each in found] == [1, 1, 1]
    assert "ddpfix: rank 1: " in found[1].errors and "nope7" in found[1].errors
