"""The rules: replicas that are equal and right, or all ranks ended with the cause; and no damaged file."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

import torch

from tests.faults import programs
from tests.faults.plan import STEPS, Plan
from tests.faults.rank import CHECKPOINT, ROWS, SAID

# How far from the reference parameters may be: sums over three ranks are added in another order.
NEAR = 1e-12
SURVIVED, ENDED, HUNG = "survived", "ended", "hung"
# Kinds whose own fault may end a run, and what then has to be read somewhere.
CAUSES: Dict[str, str] = {
    "kill": r"SIGKILL|Signal 9|exitcode: -9",
    "forward": "injected fault in forward",
    "backward": "injected fault in backward",
    "loader": "injected fault in the loader",
    "hook": "injected fault in a ",
    "worker": r"DataLoader worker \(pid.*\) (is killed by signal|exited unexpectedly)|ConnectionResetError|EOFError",
    "full disk: checkpoint": r"No space left|file write failed|unexpected pos|PytorchStreamWriter|iostream error",
    "store gone": r"process group's store does not answer",
    "full disk: error file": "injected fault in forward",
    "memory": r"MemoryError|(can't|Cannot) allocate memory|bad_alloc|can't start new thread|unable to mmap",
}


class Outcome(NamedTuple):
    """What became of a run.

    Attributes:
        seed: of the run.
        kind: of the fault.
        how: which of the kind.
        program: what was trained.
        size: the number of ranks.
        end: ``survived``, ``ended`` or ``hung``.
        seconds: that it took.
        told: what the user reads of the cause, in words.
        faults: what the rules say against it.
        plain: the end of the same run without ddpfix, where that was made.
    """

    seed: int
    kind: str
    how: str
    program: str
    size: int
    end: str
    seconds: float
    told: List[str]
    faults: List[str]
    plain: Optional[str] = None


def outcome(plan: Plan, folder: Path, code: Optional[int], seconds: float) -> Outcome:
    """Judge what a run has left.

    Args:
        plan: what was run.
        folder: where.
        code: the agent's exit code; None where it was ended at the limit.
        seconds: that it took.
    """
    end = HUNG if code is None else SURVIVED if code == 0 else ENDED
    said = [_read(folder / SAID.format(rank)) for rank in range(plan.size)]
    agent = _read(folder / "agent.log")
    faults = _numbers(plan, folder, end) + _files(folder)
    if end == HUNG:
        faults.append("it was not over at the limit")
    if end == ENDED:
        faults += _cause(plan, said, agent)
    told = _told(plan, end, said, agent)
    return Outcome(plan.seed, plan.kind, plan.how, plan.program, plan.size, end, seconds, told, faults)


def needs_plain(found: Outcome) -> bool:
    """Whether a run without ddpfix has to say if it would have been better."""
    free = found.kind not in CAUSES or found.kind == "store gone"
    return found.end == HUNG or bool(found.faults) or (found.end == ENDED and free)


def beside(found: Outcome, plain: Outcome) -> Outcome:
    """The outcome in the light of the same run without ddpfix: what plain torch does as well is no fault of ours."""
    faults = list(found.faults)
    if found.end == ENDED and found.kind not in CAUSES and found.kind != "undo" and plain.end == SURVIVED:
        faults.append("it survives without ddpfix")
    if found.end == plain.end == HUNG:
        faults.remove("it was not over at the limit")
    return found._replace(faults=faults, plain=plain.end)


def _numbers(plan: Plan, folder: Path, end: str) -> List[str]:
    """Each step that any rank has taken, against the reference, and the ranks against each other."""
    right = programs.reference(plan.program, plan.seed, plan.size, STEPS)
    rows = [_rows(folder / ROWS.format(rank), len(right[0])) for rank in range(plan.size)]
    faults = []
    for rank, own in enumerate(rows):
        own = own[: plan.step] if _is_plain_torch(plan) else own
        wrong = [step for step, row in enumerate(own) if not float((row - right[step]).abs().max()) <= NEAR]
        if wrong:
            faults.append(f"rank {rank} is not right from step {wrong[0]} on")
        if end == SURVIVED and len(rows[rank]) != STEPS:
            faults.append(f"rank {rank} ended well after {len(rows[rank])} steps")
    for step, (one, *others) in enumerate(zip(*rows)):
        if _is_plain_torch(plan) and step >= plan.step:
            break
        if not all(torch.equal(one, other) for other in others):
            faults.append(f"replicas differ after step {step}")
            break
    return faults


def _is_plain_torch(plan: Plan) -> bool:
    """Whether the fault makes it plain torch without a flag that the model needs.

    The optimizer then uses gradients that were not averaged before the error of the next forward: torch's own fault.
    """
    return plan.kind == "undo" and plan.program != "plain"


def _rows(file: Path, width: int) -> List[torch.Tensor]:
    content = bytearray(file.read_bytes()) if file.exists() else bytearray()
    whole = len(content) // (8 * width)
    return list(torch.frombuffer(content, dtype=torch.float64)[: whole * width].reshape(-1, width)) if whole else []


def _files(folder: Path) -> List[str]:
    """What cannot be read of the files that are there."""
    from ddpfix.trace import reader

    reads: List[Tuple[str, Callable[[], object]]] = []
    for file in folder.glob(f"**/{CHECKPOINT}"):
        reads.append(("the checkpoint", functools.partial(torch.load, str(file))))
    for file in folder.glob("**/error.json"):
        reads.append(("an error file", functools.partial(_json, file)))
    if list((folder / "trace").glob("rank-*")):
        reads.append(("the trace", lambda: reader.read(folder / "trace")))
        reads.append(("the report", lambda: _report(folder)))
    faults = []
    for what, read in reads:
        try:
            read()
        except BaseException as error:
            faults.append(f"{what} is damaged: {type(error).__name__}: {error}")
    return faults


def _json(file: Path) -> object:
    return json.loads(file.read_text())


def _report(folder: Path) -> None:
    from ddpfix.cli import main

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            code = main.main(["report", str(folder / "trace"), "-o", str(folder / "report.html")])
    except SystemExit as error:
        code = error.code  # type: ignore[assignment]
    assert not code, f"exit code {code}"


def _cause(plan: Plan, said: List[str], agent: str) -> List[str]:
    """Whether the cause is named, where the kind of fault has one; and that torch elastic ended in its own way."""
    everything = "\n".join([*said, agent])
    faults = []
    if plan.kind in CAUSES and not re.search(CAUSES[plan.kind], everything):
        faults.append("the cause is not named")
    if "Error" not in everything and "SIG" not in everything:
        faults.append("nothing says why it ended")
    if "ChildFailedError" not in agent and "FAILED" not in agent:
        faults.append("torch elastic did not end with its summary")
    return faults


def _told(plan: Plan, end: str, said: List[str], agent: str) -> List[str]:
    """How the user learns of it."""
    lines = [[line for line in text.splitlines() if line.startswith("ddpfix:")] for text in said]
    found = []
    named = [any(re.search(r"rank \d+ (failed|ended|exited|reached the end)", line) for line in own) for own in lines]
    if end == ENDED and any(named):
        found.append("every rank" if all(named) else "some ranks")
    if end == ENDED and plan.kind in CAUSES and re.search(CAUSES[plan.kind], agent):
        found.append("torch elastic's summary")
    if end == ENDED and plan.kind in CAUSES and re.search(CAUSES[plan.kind], "\n".join(said)):
        found.append("traceback")
    words = {
        "ranks wait: ": "hang paragraph",
        "ranks continue after": "a line that it goes on",
        "trace": "a line of the trace",
    }
    everything = "\n".join("\n".join(own) for own in lines)
    found += [name for word, name in words.items() if word in everything]
    return found


def _read(file: Path) -> str:
    return file.read_text(errors="replace") if file.exists() else ""
