"""Judges how a program ended under ddpfix, beside plain torch and beside gradients averaged by hand."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from tests.harm.loops.kit import BY_HAND, PARTS
from tests.harm.loops.launch import Run, train
from tests.harm.loops.plan import Plan
from tests.late.loops.verdict import distance

# Plain is right, and ddpfix equal bit for bit and silent.
EQUAL = "equal"
# Plain fails, and ddpfix trains as averaged by hand; or ends with an error before an optimizer used anything else.
CURED, ENDED = "cured", "ended"
# Plain trains something else in silence: ddpfix trains as by hand, or it does not, or it ends with an error.
MENDED, LEFT, STOPPED = "mended", "left wrong", "stopped"
# Plain ends with an error after an optimizer has used what was not averaged, and so does ddpfix after the same steps.
SPOILED = "spoiled as in plain torch"
# Not even the averages by hand can be trained.
INVALID = "invalid"
BREACH = "breach"
VERDICTS = (EQUAL, CURED, ENDED, MENDED, LEFT, STOPPED, SPOILED, INVALID, BREACH)
# The line of each process group, which says what is in place.
SILENT = "silent"
SUMMARY = re.compile(r"^ddpfix [0-9][^:]*: ")


@dataclass
class Verdict:
    """How one program ended."""

    name: str  # of :data:`VERDICTS`
    text: str = ""  # what is broken, or the error


def judged(plans: Sequence[Plan], folder: Path) -> List[Tuple[Plan, Verdict, Dict[str, Run]]]:
    """Run and judge programs; breaches are looked for a second time, because a machine may have been slow."""
    found = [(plan, judge(plan, **runs), runs) for plan, runs in zip(plans, train(plans, folder))]
    again = [plan for plan, verdict, _ in found if verdict.name == BREACH]
    second = {plan.seed: judge(plan, **runs) for plan, runs in zip(again, train(again, folder) if again else ())}
    for plan, verdict, _ in found:
        other = second.get(plan.seed, verdict)
        verdict.text += "" if other.name == verdict.name else f" (once; then {other.name})"
    return found


def judge(plan: Plan, plain: Run, ddpfix: Run) -> Verdict:
    """The verdict on a program that was run in plain torch, by hand and under ddpfix."""
    if plain.killed or ddpfix.killed:
        where = "under ddpfix, and ends in plain torch" if not plain.killed else "in plain torch"
        return Verdict(BREACH if not plain.killed else INVALID, f"does not end {where}")
    failed = errors(plain, BY_HAND)
    if failed:
        return Verdict(INVALID, failed)
    # Under DDP all ranks round alike.
    close = 1e-10 if plan.double else 3e-5
    if errors(plain, ["ddp"]):
        return _failing(plain, ddpfix, close)
    if not apart(plain) and any(like(plain, plain, mode, close) for mode in BY_HAND):
        return _right(plain, ddpfix)
    return _wrong(plain, ddpfix, close)


def _right(plain: Run, ours: Run) -> Verdict:
    """What plain torch trains rightly is trained the same, without a line."""
    failed = errors(ours, ["ddp"])
    if failed:
        return Verdict(BREACH, f"an error, where plain torch is right: {failed}")
    for rank, (one, other) in enumerate(zip(ours.records, plain.records)):
        for part in PARTS:
            if one["ddp"][part] != other["ddp"][part]:
                return Verdict(BREACH, f"{part} of rank {rank} differ from plain torch's{_far(one, other, part)}")
    line = said(ours)
    return Verdict(EQUAL) if line == SILENT else Verdict(BREACH, f"a line, where plain torch is right: {line}")


def _failing(plain: Run, ours: Run, close: float) -> Verdict:
    """What plain torch ends is trained as by hand, or ended before an optimizer used anything else."""
    failed = errors(ours, ["ddp"])
    if any(like(ours, plain, mode, close, ended=bool(failed)) for mode in BY_HAND):
        if apart(ours):
            return Verdict(BREACH, "replicas differ")
        return Verdict(ENDED, failed) if failed else Verdict(CURED)
    begun = [(one["ddp"]["parameters"], two["ddp"]["parameters"]) for one, two in zip(ours.records, plain.records)]
    if failed and all(got == theirs[: len(got)] for got, theirs in begun):
        return Verdict(SPOILED, failed)
    far = min(farthest(ours, plain, mode) for mode in BY_HAND)
    ends = f"error: {failed}" if failed else f"no error; {said(ours)}"
    return Verdict(BREACH, f"not as by hand ({far:.1e}), {ends}; plain torch: {errors(plain, ['ddp'])}")


def _wrong(plain: Run, ours: Run, close: float) -> Verdict:
    """What plain torch trains wrong may be mended; replicas that are equal there are equal."""
    failed = errors(ours, ["ddp"])
    if apart(ours) and not apart(plain):
        return Verdict(BREACH, "replicas differ, which are equal in plain torch")
    if failed:
        return Verdict(STOPPED, failed)
    if any(like(ours, plain, mode, close) for mode in BY_HAND):
        return Verdict(MENDED)
    same = all(one["ddp"]["parameters"] == two["ddp"]["parameters"] for one, two in zip(ours.records, plain.records))
    differ = f"replicas differ, {said(ours)}" if apart(ours) else "replicas are equal"
    return Verdict(LEFT, f"{'as in plain torch' if same else 'otherwise'}; {differ}")


def errors(run: Run, modes: Any) -> str:
    """The errors of all ranks in some modes, once each; "" if there is none."""
    found = [record[mode]["error"] for record in run.records for mode in modes if mode in record]
    return " | ".join(dict.fromkeys(error for error in found if error))


def said(run: Run) -> str:
    """The last line that ddpfix has printed beside its summary."""
    lines = [line for log in run.logs for line in log.splitlines() if line.startswith("ddpfix")]
    return next((line for line in reversed(lines) if not SUMMARY.match(line)), SILENT)


def apart(run: Run) -> bool:
    """Whether parameters differ between ranks after a step that all of them have made."""
    of_ranks = [record["ddp"]["parameters"] for record in run.records]
    return any(len(set(step)) > 1 for step in zip(*of_ranks))


def like(run: Run, reference: Run, mode: str, close: float, ended: bool = False) -> bool:
    """Whether parameters are those of a way by hand after each step; a run that has ended may lack the last ones."""
    for record, by_hand in zip(run.records, reference.records):
        made, all_of = len(record["ddp"]["parameters"]), len(by_hand[mode]["parameters"])
        if made > all_of or (made < all_of and not ended):
            return False
    return farthest(run, reference, mode) <= close


def farthest(run: Run, reference: Run, mode: str) -> float:
    """The largest distance of parameters from those of a way by hand, over all steps that were made."""
    pairs = [
        pair
        for record, by_hand in zip(run.records, reference.records)
        for pair in zip(record["ddp"]["parameters"], by_hand[mode]["parameters"])
    ]
    return max((distance(*pair) for pair in pairs), default=0.0)


def _far(one: Dict[str, Any], other: Dict[str, Any], part: str) -> str:
    """From which step on, and how far, if that can be told."""
    steps = list(zip(one["ddp"][part], other["ddp"][part]))
    first: Optional[int] = next((step for step, (a, b) in enumerate(steps) if a != b), None)
    if first is None:
        return " in their number"
    a, b = steps[first]
    far = f" by {distance(a, b):.1e}" if part in ("parameters", "buffers", "state") else ""
    return f" after step {first}{far}"
