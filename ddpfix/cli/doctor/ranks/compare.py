"""What differs between ranks, in a size that does not grow with their number."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, Dict, List, Sequence, Tuple

from ddpfix.cli.doctor.finding import BLOCKS, WARNING
from ddpfix.cli.doctor.ranks.record import Record

#: Ranks, hosts and values that are named; of more there is a count.
SHOWN = 20
# Facts that ranks have to share: a job ends, or hangs, where they differ.
_SAME = ("DDPFIX", "ddpfix version", "torch version", "torch nccl", "WORLD_SIZE", "toolkit ", "setting ", "switch of ")
# What ddpfix does not compare in a job.
_MAY = ("setting log", "setting timeout")
_MISSING = "not there"


def differences(records: Sequence[Record]) -> List[Dict[str, Any]]:
    """Return one entry a fact that differs somewhere: what most ranks have, and those that have something else."""
    found = []
    for name in dict.fromkeys(name for record in records for name in record.facts):
        values = {record.rank: record.facts.get(name, _MISSING) for record in records}
        counts = Counter(values.values())
        if len(counts) > 1:
            most = max(counts, key=lambda value: (counts[value], value == values[records[0].rank]))
            others = [record for record in records if values[record.rank] != most]
            found.append(
                {
                    "name": name,
                    "level": BLOCKS if name.startswith(_SAME) and name not in _MAY else WARNING,
                    "most_have": most,
                    "number": len(others),
                    "others": [{"rank": r.rank, "host": r.host, "value": values[r.rank]} for r in others[:SHOWN]],
                }
            )
    return sorted(found, key=lambda entry: entry["level"] != BLOCKS)


def findings(records: Sequence[Record]) -> List[Dict[str, Any]]:
    """Return the findings of all ranks, each once, with the ranks that have it."""
    having: Dict[Tuple[str, str, str, str], List[int]] = defaultdict(list)
    for record in records:
        for each in record.findings:
            level, about, text, cure = each
            having[level, about, text, cure].append(record.rank)
    return [finding(*words, ranks) for words, ranks in having.items()]


def finding(level: str, about: str, text: str, cure: str, ranks: Sequence[int] = ()) -> Dict[str, Any]:
    """Return one finding as data; the first of its ranks are named."""
    return {
        "level": level,
        "about": about,
        "text": text,
        "cure": cure,
        "ranks": list(ranks[:SHOWN]),
        "number_of_ranks": len(ranks),
    }


def same_gpu(records: Sequence[Record]) -> List[Dict[str, Any]]:
    """Return a finding if two ranks of a machine have the same GPU."""
    owners: Dict[Tuple[str, str], List[int]] = defaultdict(list)
    for record in records:
        if record.gpu:
            owners[record.host, record.gpu].append(record.rank)
    shared = [rank for ranks in owners.values() if len(ranks) > 1 for rank in ranks]
    text = "several ranks have the same GPU: NCCL refuses that"
    cure = "have each rank take the GPU of its LOCAL_RANK, which the launcher has to set"
    return [finding(BLOCKS, "ranks", text, cure, shared)] if shared else []


def hosts(records: Sequence[Record]) -> Dict[str, Any]:
    """Return how many machines there are, and how many ranks each of the first ones has."""
    counts = Counter(record.host for record in records)
    return {"number": len(counts), "ranks": dict(list(counts.items())[:SHOWN])}


def clocks(seconds: Dict[int, float], precision: float) -> Dict[str, Any]:
    """Return how far the clocks of the ranks are from that of rank 0, as seen right after a barrier.

    Args:
        seconds: of the clock of each rank.
        precision: seconds that ranks may leave the barrier after each other.
    """
    if 0 not in seconds:
        return {"precision_s": precision, "most_s": None, "ranks": {}}
    off = {rank: value - seconds[0] for rank, value in seconds.items()}
    far = sorted((rank for rank in off if abs(off[rank]) > max(0.5, 2 * precision)), key=lambda rank: -abs(off[rank]))
    most = max(map(abs, off.values()))
    return {"precision_s": precision, "most_s": most, "ranks": {str(rank): off[rank] for rank in far[:SHOWN]}}


def listed(ranks: Sequence[int]) -> str:
    """Ranks in words: 0, 2, 3 and 40 more."""
    more = f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else ""
    return ", ".join(map(str, ranks[:SHOWN])) + more
