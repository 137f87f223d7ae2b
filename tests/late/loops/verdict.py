"""Judges a run: its outcome, and whether that outcome is allowed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List

import numpy

from tests.late.loops.kinds import Kind
from tests.late.loops.launch import Ranks

# An error of a rank that only waited for another one.
WAITED = re.compile(r"[Tt]imed out|[Tt]imeout|Connection (closed|reset)|Broken pipe|wait for .* ms|Socket Timeout")
OUR_PREFIX = "ddpfix:"


@dataclass
class Verdict:
    """The outcome of a run."""

    # "right", "error", "hangs", "killed" (hangs beyond every time limit), "parts", "wrong" or "unavailable".
    outcome: str
    text: str = ""  # the errors, or how far parameters are from what they should be


def verdict(ranks: Ranks, hand: Ranks, close: float) -> Verdict:
    """The outcome of a run, compared with the reference of the same program."""
    records = [record for _, record in ranks]
    if any(record and record.get("unavailable") for record in records):
        return Verdict("unavailable", next(str(record["unavailable"]) for record in records if record))
    if any(record is None for record in records):
        return Verdict("killed", " | ".join(errors(ranks)))
    if errors(ranks):
        own = [text for text in errors(ranks) if not WAITED.search(text) or OUR_PREFIX in text]
        return Verdict("error" if own else "hangs", " | ".join(own or errors(ranks)))
    return _trained(records, [record for _, record in hand], close)


def errors(ranks: Ranks) -> List[str]:
    return [str(record["error"]) for _, record in ranks if record is not None and record["error"]]


def _trained(records: List[Any], hand: List[Any], close: float) -> Verdict:
    """The outcome of a run in which no rank failed."""
    apart = max(_between_ranks(records), default=0.0)
    # Sums of three are rounded alike on all ranks, so that no difference between replicas is allowed ever.
    if apart:
        return Verdict("parts", f"replicas are {apart:.1e} apart")
    if any(record is None or record["error"] for record in hand):
        return Verdict("wrong", "the reference did not train: " + " | ".join(str(r and r["error"]) for r in hand))
    far = max((difference(one, other) for one, other in zip(records, hand)), default=0.0)
    return Verdict("wrong" if far > close else "right", f"{far:.1e} from the reference" if far else "")


def _between_ranks(records: List[Any]) -> Iterator[float]:
    """How far replicas are apart, after each step."""
    for number, record in enumerate(records):
        for label, members in record["ranks"].items():
            for other in (member for member in members if member > number):
                for one, two in zip(record["values"], records[other]["values"]):
                    yield distance(one[label], two[label]) if label in one and label in two else 0.0


def difference(one: Any, other: Any) -> float:
    """The largest distance between the parameters of two runs."""
    if len(one["values"]) != len(other["values"]):
        return float("inf")
    return max(
        (distance(a[label], b[label]) for a, b in zip(one["values"], other["values"]) for label in b if label in a),
        default=0.0,
    )


def distance(one: str, other: str) -> float:
    """The largest distance between two states (:func:`.loop.numbers`); NaN equals NaN."""
    first, second = (numpy.frombuffer(bytes.fromhex(each)) for each in (one, other))
    if len(first) != len(second):
        return float("inf")
    far = numpy.abs(first - second)
    far[(first == second) | (numpy.isnan(first) & numpy.isnan(second))] = 0.0
    return float(numpy.nan_to_num(far, nan=numpy.inf).max(initial=0.0))


def spoiled(ranks: Ranks, hand: Ranks, close: float) -> float:
    """How far a run that failed had got from the reference before it failed: nothing may have been used too early.

    Each model must be as the reference was after the same step, and in the end as it was before or after the next one.
    """
    worst = 0.0
    for (_, record), (_, reference) in zip(ranks, hand):
        if record is None or reference is None or not record.get("values"):
            continue
        done = len(record["values"])
        for got, wanted in zip(record["values"], reference["values"]):
            worst = max([worst, *(distance(got[label], wanted[label]) for label in got if label in wanted)])
        near = reference["values"][max(0, done - 1) : done + 1]
        for label, values in (record["end"] or {}).items():
            ways = [distance(values, wanted[label]) for wanted in near if label in wanted]
            worst = max(worst, min(ways, default=0.0) if done else 0.0)
    return worst if worst > close else 0.0


def broken(kind: Kind, runs: Dict[str, Ranks], mode: str, size: int) -> str:
    """Why the outcome of a run under ddpfix is not allowed, or ""."""
    ranks, unpatched, hand, close = runs[mode], runs["plain"], runs["hand"], kind.closeness(size)
    plain, ours = (verdict(each, hand, close) for each in (unpatched, ranks))
    if "unavailable" in (plain.outcome, ours.outcome):
        return ""
    if plain.outcome == "right":
        return _as_plain(kind, ours, ranks, unpatched, size)
    if kind.ours == "plain":
        logs = "".join(log for log, _ in ranks)
        same = ours.outcome == plain.outcome or ours.outcome in ("right", "error")
        return "" if same and re.search(kind.cause, logs) else f"{ours.outcome}, not {plain.outcome}: {ours.text}"
    if ours.outcome == "right":
        return "" if kind.ours in ("exact", "either") else "it trains, but an error is declared"
    if kind.ours == "exact" or ours.outcome in ("parts", "wrong", "killed"):
        return f"{ours.outcome}: {ours.text}"
    if not re.search(kind.cause, " | ".join(errors(ranks))):
        return f"the error does not name the cause ({kind.cause}): {ours.text}"
    far = spoiled(ranks, hand, close) if kind.traced else 0.0
    return f"un-averaged gradients were used before the error: {far:.1e} from the reference" if far else ""


def _as_plain(kind: Kind, ours: Verdict, ranks: Ranks, unpatched: Ranks, size: int) -> str:
    """A program that plain torch trains rightly trains the same, and sends no more from its second step on."""
    if ours.outcome not in ("right", "wrong"):
        return f"{ours.outcome}, where plain torch is right: {ours.text}"
    pairs = [(record, plain) for (_, record), (_, plain) in zip(ranks, unpatched)]
    far = max(difference(record, plain) for record, plain in pairs)
    if far > (0.0 if size == 2 else kind.close_three):
        return f"parameters are {far:.1e} from plain torch's"
    return more_sent([record for _, record in ranks], [record for _, record in unpatched])


def more_sent(records: List[Any], plains: List[Any]) -> str:
    """Why ddpfix sends more than plain torch, or "". An old torch's profiler may lose the last event of a rank."""
    if not all(record and record["sent"] for record in [*records, *plains]):
        return ""
    for what, index in (("elements", 1), ("collectives", 0)):
        ours, theirs = (max(sum(s[index] for s in r["sent"][1:]) for r in each) for each in (records, plains))
        if ours > theirs:
            return f"{ours} {what} are sent from the second step on, {theirs} in plain torch"
    return ""


def as_declared(kind: Kind, plain: Verdict, unpatched: Ranks) -> str:
    """Why plain torch does not do what is declared of it, or ""."""
    outcome = "hangs" if plain.outcome == "killed" else plain.outcome
    if outcome in ("unavailable", kind.plain):
        if outcome == "error" and not re.search(kind.plain_cause, " | ".join(errors(unpatched))):
            return f"plain torch's error is another one: {plain.text}"
        return ""
    return f"plain torch: {plain.outcome}, declared: {kind.plain}; {plain.text}"
