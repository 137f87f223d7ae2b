"""``ddpfix doctor --ranks`` on real ranks: what it measures, who differs, who is missing; nobody waits for ever."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Sequence

import pytest

from tests.support import ports, ranks

rest = pytest.mark.sampled(inside=False, cells=True)
DOCTOR = ("-m", "ddpfix", "doctor", "--ranks")


class Ended(NamedTuple):
    code: int
    output: str
    errors: str


def start(numbers: Sequence[int], folder: Path, *words: str, size: int = 2, **each: Dict[str, str]) -> List[Ended]:
    """Run some ranks of a job without a launcher.

    Args:
        numbers: the ranks that are started.
        folder: where.
        words: of the command, or what stands in place of it.
        size: the world size.
        each: more variables of a rank, by ``rank0`` and so on.
    """
    port = str(ports.free_port())
    command = [sys.executable, *(words if words and words[0] in ("-c", "-m") else (*DOCTOR, *words))]
    children = []
    for number in numbers:
        place = {"RANK": str(number), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environ = {**ranks.environment(place), **each.get(f"rank{number}", {})}
        pipes: Dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        children.append(subprocess.Popen(command, env=environ, cwd=str(folder), **pipes))
    try:
        ended = [(child, *child.communicate(timeout=120)) for child in children]
    finally:
        for child in children:
            child.kill()
    return [Ended(child.returncode, output, errors) for child, output, errors in ended]


def texts(report: Dict[str, Any]) -> Dict[str, Any]:
    return {each["text"]: each for each in report["findings"]}


@pytest.mark.sampled(inside=False, cells=True)
def test_ranks_that_differ_are_named_and_collectives_are_right(tmp_path: Path) -> None:
    first, second = start([0, 1], tmp_path, "--json", "--limit", "60", rank1={"DDPFIX_UNUSED": "find"})
    assert (first.code, second.code, second.output) == (1, 0, ""), (first, second)
    report = json.loads(first.output)
    assert (report["world_size"], report["arrived"], report["backend"]) == (2, 2, "gloo")
    assert [(each["bytes"], each["wrong_ranks"]) for each in report["collectives"]] == [
        (4, []),
        (25 << 20, []),
        (0, []),
    ]
    for each in report["collectives"]:
        assert 0 < each["min_ms"] <= each["median_ms"] <= each["max_ms"]
    assert report["collectives"][1]["bus_gb_per_s"] > 0
    # What a job would end with.
    assert not report["agreement"]["same"]
    assert "DDPFIX_UNUSED is 'find' there and 'auto' on rank 0" in report["agreement"]["problem"]
    (entry,) = [entry for entry in report["differences"] if entry["name"] == "setting unused"]
    assert (entry["level"], entry["most_have"]) == ("blocks", "auto")
    assert [(each["rank"], each["value"]) for each in entry["others"]] == [(1, "find")]
    assert report["clocks"]["most_s"] < 5 and report["clocks"]["ranks"] == {}


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
    assert json.loads(report)["arrived"] == 2 and end == "", first.output
    assert second.output == "\nthe end\n"
    assert "[Gloo] Rank 0 is connected" in first.errors and "[Gloo]" in second.errors


@rest
def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    begun = time.monotonic()
    (first,) = start([0], tmp_path, "--json", "--limit", "1")
    assert first.code == 1 and time.monotonic() - begun < 60
    report = json.loads(first.output)
    found = texts(report)["1 of 2 ranks did not come within 1 s"]
    assert (found["level"], found["ranks"], report["backend"]) == ("blocks", [1], None)


@rest
def test_under_torchrun_all_is_right(tmp_path: Path) -> None:
    code, output = ranks.run([*ranks.elastic(2), *DOCTOR], ranks.environment(), tmp_path, 120)
    assert code == 0, output
    assert "doctor, 2 of 2 ranks on 1 host, backend gloo" in output
    assert "ddpfix's agreement  all ranks do the same" in output and "all_reduce of 25 MB" in output
    assert "blocks:" not in output


@rest
@pytest.mark.parametrize("more", [{"DDPFIX": "1"}, {"DDPFIX": "1", "DDPFIX_LOG": "debug"}], ids=["on", "debug"])
def test_under_ddpfix(more: Dict[str, str], tmp_path: Path) -> None:
    found = start([0, 1], tmp_path, "--json", rank0=more, rank1=more)
    assert [each.code for each in found] == [0, 0], found
    report = json.loads(found[0].output)
    assert report["agreement"]["same"] and not report["blocked"] and "Traceback" not in found[0].errors


@rest
def test_ddpfix_on_one_rank_only(tmp_path: Path) -> None:
    found = start([0, 1], tmp_path, "--json", rank0={"DDPFIX": "1"})
    report = json.loads(found[0].output)
    assert found[0].code == 1
    assert any(text.startswith("DDPFIX is on on 1 of 2 ranks, but not set on rank 1") for text in texts(report))


@rest
def test_three_ranks_of_which_one_cannot_connect(tmp_path: Path) -> None:
    """An interface that is not there: that rank tells why, and the others do not wait beyond the limit."""
    begun = time.monotonic()
    wrong = {"GLOO_SOCKET_IFNAME": "nope7"}
    found = start([0, 1, 2], tmp_path, "--json", "--limit", "8", size=3, rank1=wrong)
    assert time.monotonic() - begun < 90 and found[0].code == 1 and found[1].code == 1
    named = texts(json.loads(found[0].output))
    assert named["GLOO_SOCKET_IFNAME names no interface with an address on this machine"]["ranks"] == [1]
    (error,) = [text for text in named if "nope7" in text and text.startswith("making the process group")]
    assert named[error]["ranks"] == [1]


@rest
def test_rank_0_does_not_come(tmp_path: Path) -> None:
    begun = time.monotonic()
    (second,) = start([1], tmp_path, "--limit", "2")
    assert second.code == 1 and time.monotonic() - begun < 60
    assert "rank 1 cannot reach the store at MASTER_ADDR, port" in second.errors
    assert "rank 0 has not come within 2 s" in second.errors


AGENT = """
import datetime, os, subprocess, sys
from torch import distributed
store = distributed.TCPStore("127.0.0.1", 0, 1, True, datetime.timedelta(seconds=60), False)
place = dict(MASTER_PORT=str(store.port), TORCHELASTIC_USE_AGENT_STORE="True")
command = [sys.executable, "-m", "ddpfix", "doctor", "--ranks", "--limit", "2"]
children = [subprocess.Popen(command, env={**os.environ, **place, "RANK": rank}) for rank in ("1", "2")]
codes = [child.wait(90) for child in children]
sys.exit(0 if codes == [1, 1] else 1)
"""


@rest
def test_rank_0_does_not_come_and_the_agent_keeps_the_store(tmp_path: Path) -> None:
    """One of the ranks that are there says who is not."""
    (ended,) = start([0], tmp_path, "-c", AGENT, size=4)
    assert ended.code == 0, ended
    lines = [line for line in ended.errors.splitlines() if "did not come within 2 s: rank 0, 3;" in line]
    assert len(lines) == 1, ended


STUCK = """
import os, sys, time
from ddpfix.cli.doctor.ranks import {module} as module
from ddpfix.cli.main import main
original = module.{name}
if os.environ["RANK"] == "1":
    module.{name} = lambda *words: time.sleep(300)
sys.exit(main(["doctor", "--ranks", "--json", "--limit", "4"]))
"""


@rest
@pytest.mark.parametrize(
    ("module", "name", "stage"),
    [
        ("measure", "run", "rank 1: making the process group"),
        ("group", "agreement.meet", "rank 0, 1: ddpfix's agreement"),
    ],
    ids=["collective", "agreement"],
)
def test_a_rank_that_gets_stuck_ends_nobody_s_patience(module: str, name: str, stage: str, tmp_path: Path) -> None:
    begun = time.monotonic()
    first, second = start([0, 1], tmp_path, "-c", STUCK.format(module=module, name=name))
    assert time.monotonic() - begun < 90 and (first.code, second.code) == (1, 1), (first, second)
    report = json.loads(first.output)
    assert any("those that are behind are: " + stage in text for text in texts(report)), report["findings"]


@rest
def test_two_processes_with_one_rank(tmp_path: Path) -> None:
    found = start([0, 1, 1], tmp_path, "--json", "--limit", "8", size=3)
    assert found[0].code == 1 and 1 in (found[1].code, found[2].code)
    assert "two processes say that they are the same rank" in texts(json.loads(found[0].output))


@rest
def test_a_port_that_is_taken(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = {"MASTER_PORT": str(taken.getsockname()[1])}
        (first,) = start([0], tmp_path, "--limit", "2", rank0=port)
    assert first.code == 1 and "rank 0 cannot keep a store at MASTER_ADDR" in first.errors, first
    assert "choose another MASTER_PORT" in first.errors
