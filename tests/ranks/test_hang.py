"""A job of three ranks hangs: one paragraph names the rank, the place and the cause; slow jobs are let alone."""

from __future__ import annotations

import itertools
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence

import pytest

from tests.ranks import hanging, launch
from tests.support import pool, results

SCRIPT = Path(hanging.__file__)
# Left to cells and nox -s rest.
LONG = pytest.mark.sampled(inside=False, cells=True)
HANGS, MORE = "ddpfix: ranks wait: ", "ddpfix:   "
# Seconds that ranks wait in these jobs before it is said.
LIMIT = "3"


@dataclass
class Scenario(launch.Scenario):
    """One job of :mod:`tests.ranks.hanging`, whose process group has a limit in seconds."""

    job: str = ""
    limit: float = 1800


class Ended(NamedTuple):
    """What three ranks left of a job, and the folder where they ran."""

    ranks: List[results.Result]
    folder: Path

    def told(self) -> str:
        """The one paragraph; fails where there is none, or more than one."""
        found = [rank.log.partition(HANGS)[2] for rank in self.ranks if HANGS in rank.log]
        assert len(found) == 1 and HANGS not in found[0], self.ranks
        first, *rest = found[0].splitlines()
        lines = [first, *(line[len(MORE) :] for line in itertools.takewhile(lambda line: line.startswith(MORE), rest))]
        assert len(HANGS + first) <= 240 and all(len(MORE + line) <= 240 for line in lines[1:]), lines
        return " ".join(lines)

    def stacks(self) -> Dict[str, str]:
        """The files of stacks by their names."""
        return {file.name: file.read_text() for file in self.folder.glob("ddpfix-hang-*/hang-rank-*.txt")}


def job(name: str, active: bool = True, limit: float = 1800, timeout: float = 60, **environ: str) -> Ended:
    folder = Path(tempfile.mkdtemp(prefix="ddpfix-hanging-"))
    one = Scenario(name, (), active, environ, timeout, name, limit)
    return Ended(pool.results(SCRIPT, [one], folder, 3, {}, results.Result)[name], folder)


class Said(NamedTuple):
    """What the paragraph has to have: about the rank, where it is, and about the cause."""

    rank: str
    place: str
    cause: str


# Before Python 3.11, and from 3.14 on, a function that is called again may have the same frame: whether it moves is not
# always seen.
MOVES = "is" if (3, 11) <= sys.version_info < (3, 14) else "(is|has been)"
HERE = r"hanging\.py:\d+"
STILL = "which ranks 0 and 2 are still in"
STAGED: Dict[str, Said] = {
    "uneven": Said("rank 1 waits in barrier", HERE, rf"Rank 1 is past the loop of {HERE}, {STILL}. Uneven data"),
    "stuck_worker": Said(
        "rank 1 has been in DataLoader.__next__", HERE, r"loader worker 0 \(process \d+\) is stopped \(SIGSTOP\)"
    ),
    "sizes": Said("rank 0 waits in all_reduce of 2 float32", HERE, "The calls differ in size or rank"),
    "evaluation": Said("rank 0 (is|has been) in evaluation, evaluate", HERE, "Evaluation on some ranks only"),
    "saving": Said(f"rank 0 {MOVES} in a save, torch.save", HERE, "A save on some ranks only, or a slow file system"),
    "accumulating": Said("rank 1 is in training without a collective", HERE, "It is moving"),
    "stopped": Said(r"rank 1 is stopped \(SIGSTOP\)", r"process \d+ on ", "kill -CONT"),
    "killed_rank": Said(
        "rank 2 ended without a word",
        r"process \d+ on \S+ has exited",
        r"It was ended by (SIGKILL|a signal \(by the launcher.*\) or called)",
    ),
    "unreached": Said(
        "ranks 0 and 2 wait in all-reduce of step 6",
        HERE,
        r"On rank 1 no gradient reached the model after a forward near hanging\.py:\d+: the loss does not depend",
    ),
    # A collective of one rank alone, long before: what waits is another one.
    "shifted": Said(
        "rank 0 waits in barrier", HERE, rf"Rank 0 has begun one collective more, at save_all \({HERE}\)\. Call it"
    ),
    "received": Said("rank 0 waits in recv of 1 float32 from rank 1", HERE, "The calls differ"),
    "debugged": Said("rank 1 has been in a debugger", HERE, "It is being debugged: ddpfix ends no process"),
}
# Waits that a program has limited, and goes on after.
GIVE_UP = ("waits_for_a_while", "group_gives_up", "asks_the_store")
# The others wait for these in the reduction of the next step.
WAIT = r"ranks? [012 to,and]+ waits? in (all-reduce|DDP's forward|all_reduce|monitored_barrier)"
SLOW: Sequence[str] = ("slow_loader", "evaluates", "saves", "computes", *GIVE_UP)


@pytest.mark.patches("torch.hang")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=LONG if name not in ("uneven", "shifted") else ()) for name in STAGED]
)
def test_one_paragraph_names_rank_place_and_cause(name: str) -> None:
    ended = job(name, timeout=25 if name == "debugged" else 60, DDPFIX_HANG=LIMIT, DDPFIX_HANG_EXIT=_exit(name))
    told, said = ended.told(), STAGED[name]
    for part in (said.rank, said.place, said.cause, WAIT):
        assert re.search(part, told), (part, told)
    absent = {"stopped": [1], "killed_rank": [2]}.get(name, [])
    assert sorted(ended.stacks()) == [f"hang-rank-{rank}.txt" for rank in range(3) if rank not in absent], told
    assert all("hanging.py" in text for text in ended.stacks().values())
    if name == "saving":
        # It goes on, and is not ended.
        assert "The job goes on waiting" in told and all(rank.notes["done"] for rank in ended.ranks), ended
        assert "the waiting ranks continue after" in ended.ranks[0].log, ended
    elif name == "debugged":
        assert ended.ranks[1].hung and all("DDPFIX_HANG_EXIT has" not in rank.log for rank in ended.ranks), ended
    else:
        assert "The job ends in 1 s" in told and "DDPFIX_HANG_EXIT has passed" in ended.ranks[0].log, ended


def _exit(name: str) -> str:
    return "off" if name == "saving" else "1"


@LONG
@pytest.mark.patches("torch.hang")
def test_it_is_said_before_the_process_group_gives_up() -> None:
    """The default is longer than this group waits."""
    ended = job("uneven", limit=10)
    log = ended.ranks[0].log
    assert "Uneven data" in ended.told() and str(ended.ranks[0].error).startswith("RuntimeError"), ended
    assert log.index(HANGS) < log.index("Traceback"), ended


@LONG
def test_unpatched_nothing_is_said() -> None:
    ended = job("uneven", active=False, limit=5)
    assert all(HANGS not in rank.log for rank in ended.ranks) and ended.ranks[0].error, ended


@LONG
@pytest.mark.patches("torch.hang")
def test_switched_off_nothing_is_said() -> None:
    ended = job("uneven", limit=6, DDPFIX_HANG="off")
    assert all(HANGS not in rank.log for rank in ended.ranks) and ended.ranks[0].error, ended


@LONG
@pytest.mark.patches("torch.hang")
@pytest.mark.parametrize("name", SLOW)
def test_nothing_is_said_of_a_job_that_is_slow(name: str) -> None:
    """On all ranks for longer than the limit, or on one within it."""
    ended = job(name, timeout=25 if name == "debugged" else 60, DDPFIX_HANG=LIMIT)
    assert all(rank.notes["done"] and HANGS not in rank.log for rank in ended.ranks), ended
    assert not ended.stacks()


@LONG
@pytest.mark.patches("torch.hang")
def test_undo_ends_the_thread() -> None:
    ended = job("undone")
    assert all(rank.error is None and rank.notes["done"] for rank in ended.ranks), ended
