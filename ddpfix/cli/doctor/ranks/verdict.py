"""What all ranks together have found: as data, and on a screen."""

from __future__ import annotations

import json
import sys
from typing import Any, Dict, List, Optional, Sequence

from ddpfix.cli.doctor.finding import BLOCKS, WARNING
from ddpfix.cli.doctor.ranks import compare, measure
from ddpfix.cli.doctor.ranks.compare import finding
from ddpfix.cli.doctor.ranks.place import Place
from ddpfix.cli.doctor.ranks.record import Record

#: The form of the data; a key that goes or changes its meaning makes it a new one.
FORMAT = 1
# Seconds that clocks may differ: lines of several logs cannot be put in order beyond it.
_CLOCKS = 1.0


def backend(records: Sequence[Record], asked: Optional[str], problems: List[Dict[str, Any]]) -> Optional[str]:
    """Return the backend that all ranks can take: the one asked for, or NCCL where all have GPUs, else gloo.

    Args:
        records: of all ranks.
        asked: the user's choice.
        problems: findings are added here.
    """
    without = {name: [r.rank for r in records if name not in r.backends] for name in ("nccl", "gloo")}
    if asked is None and without["nccl"] and len(without["nccl"]) < len(records):
        text = "some ranks have GPUs and NCCL, and others have not: they would take different backends"
        cure = "check the driver, CUDA_VISIBLE_DEVICES and torch of the ranks that have none"
        problems.append(finding(BLOCKS, "ranks", text, cure, without["nccl"]))
    takes = asked or ("gloo" if without["nccl"] else "nccl")
    if without[takes]:
        text = f"the backend {takes} is unavailable on {len(without[takes])} of {len(records)} ranks"
        problems.append(finding(BLOCKS, "ranks", text, "install a torch that has it (GPUs, for nccl)", without[takes]))
        return None
    return takes


def make(
    here: Place,
    taken: Optional[str],
    records: Sequence[Record],
    words: Dict[int, Any],
    problems: Sequence[Dict[str, Any]],
) -> Dict[str, Any]:
    """Return the result of all ranks.

    Args:
        here: the place of rank 0.
        taken: the backend, or None where no group was made.
        records: of the ranks that have come.
        words: how it went, by rank.
        problems: what was found so far.
    """
    times = {rank: {name: measure.Times(*each) for name, each in word["times"].items()} for rank, word in words.items()}
    collectives = measure.together(times, here.size)
    differences = compare.differences(records)
    clocks = _clocks(words, collectives)
    agreed = _agreement(words)
    findings = [*problems, *_errors(words, here.size if taken else 0), *compare.same_gpu(records)]
    findings += _of_agreement(agreed) + _of_values(collectives) + _of_clocks(clocks)
    findings += [_of_difference(entry, len(records)) for entry in differences]
    findings += compare.findings(records)
    findings.sort(key=lambda each: each["level"] != BLOCKS)
    return {
        "format": FORMAT,
        "blocked": any(each["level"] == BLOCKS for each in findings),
        "world_size": here.size,
        "arrived": len(records),
        "hosts": compare.hosts(records),
        "backend": taken,
        "findings": findings,
        "group_seconds": max((word.get("group_seconds") or 0.0 for word in words.values()), default=None),
        "collectives": collectives,
        "agreement": agreed,
        "differences": differences,
        "clocks": clocks,
    }


def _errors(words: Dict[int, Any], size: int) -> List[Dict[str, Any]]:
    by_text: Dict[str, List[int]] = {}
    for rank, word in sorted(words.items()):
        if word["error"] is not None:
            by_text.setdefault(word["error"], []).append(rank)
    cure = "check the interfaces (doctor on these hosts: network) and firewalls; NCCL_DEBUG=INFO tells more"
    # A rank that waited in vain tells less than one that could not go on.
    texts = sorted(by_text, key=lambda text: "timeout" in text.lower() or "timed out" in text.lower())
    found = [finding(BLOCKS, "ranks", text, cure, by_text[text]) for text in texts[: compare.SHOWN]]
    silent = [rank for rank in range(size) if rank not in words]
    if silent and words:
        text = f"{len(silent)} ranks did not say how it went"
        found.append(finding(BLOCKS, "ranks", text, "see the logs of these ranks", silent))
    return found


def _agreement(words: Dict[int, Any]) -> Optional[Dict[str, Any]]:
    found = [word["agreement"] for word in words.values() if word.get("agreement")]
    if not found:
        return None
    problem = next((each["problem"] for each in found if each["problem"]), None)
    return {"same": problem is None, "problem": problem, "max_ms": 1e3 * max(each["seconds"] for each in found)}


def _of_agreement(agreed: Optional[Dict[str, Any]]) -> List[Dict[str, Any]]:
    if agreed is None or agreed["same"]:
        return []
    cure = "a job under ddpfix ends with this error: make the ranks the same (differences)"
    return [finding(BLOCKS, "agreement", agreed["problem"], cure)]


def _of_values(collectives: Sequence[Dict[str, Any]]) -> List[Dict[str, Any]]:
    cure = "the network, a GPU or the backend damages data: leave these hosts out"
    return [
        finding(BLOCKS, "ranks", f"{each['name']} gave wrong values", cure, each["wrong_ranks"])
        for each in collectives
        if each["wrong_ranks"]
    ]


def _clocks(words: Dict[int, Any], collectives: Sequence[Dict[str, Any]]) -> Dict[str, Any]:
    barrier = [each["max_ms"] / 1e3 for each in collectives if each["name"] == "barrier"]
    seconds = {rank: word["clock"] for rank, word in words.items() if word.get("clock") is not None}
    return compare.clocks(seconds, max(barrier, default=0.0))


def _of_clocks(clocks: Dict[str, Any]) -> List[Dict[str, Any]]:
    if clocks["most_s"] is None or clocks["most_s"] <= _CLOCKS + clocks["precision_s"]:
        return []
    ranks = [int(rank) for rank in clocks["ranks"]]
    text = (
        f"clocks differ by up to {clocks['most_s']:.1f} s from that of rank 0: lines of the ranks' logs have no order"
    )
    return [finding(WARNING, "clocks", text, "start ntpd or chronyd on these hosts", ranks)]


def _of_difference(entry: Dict[str, Any], arrived: int) -> Dict[str, Any]:
    first = entry["others"][0]
    ranks = [each["rank"] for each in entry["others"]]
    text = (
        f"{entry['name']} is {entry['most_have']} on {arrived - entry['number']} of {arrived} ranks, but"
        f" {first['value']} on rank {first['rank']} ({first['host']})"
    )
    found = finding(entry["level"], "differences", text, "give all ranks the same environment and installation", ranks)
    return {**found, "number_of_ranks": entry["number"]}


def show(result: Dict[str, Any], as_json: bool) -> None:
    """Print it."""
    if as_json:
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
        sys.stdout.flush()
        return
    from ddpfix.cli import plan
    from ddpfix.cli.doctor.ranks import screen

    plan.new_console().print(screen.whole(result))
    sys.stdout.flush()
