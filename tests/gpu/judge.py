"""What has to hold in each section, and the figures of step time."""

from __future__ import annotations

from statistics import median
from typing import Any, Callable, Dict, List, Optional, Sequence

from tests.gpu.launch import Outcome
from tests.gpu.modes import MODES

# Relative differences of gradients, and of parameters under FSDP.
EXACT, HALF, COMPILED, SHARDED = 1e-6, 1e-3, 1e-3, 1e-5
# Copies of a comparison of the replicas, each of which is waited for: the sums of all parameters, and some elements.
LOOK = 2


def failed(outcomes: Sequence[Outcome]) -> int:
    """How many cells failed a check or had an error."""
    return sum(verdict(each, outcomes).startswith("FAILED") for each in outcomes)


def not_run(outcomes: Sequence[Outcome]) -> Dict[str, int]:
    """How many cells were not run, by reason."""
    found: Dict[str, int] = {}
    for each in outcomes:
        if each.left_out:
            found[each.left_out] = found.get(each.left_out, 0) + 1
    return found


def verdict(each: Outcome, others: Sequence[Outcome]) -> str:
    """``ok``, or what is wrong."""
    if each.left_out:
        return "left out"
    if each.error:
        return "FAILED"
    wrong = CHECKS[each.cell.section](each, others)
    return f"FAILED: {'; '.join(wrong)}" if wrong else "ok"


def _of_ddpfix(each: Outcome) -> bool:
    return MODES[each.cell.mode].settings is not None


def _exact(each: Outcome, _: Sequence[Outcome]) -> List[str]:
    first, options = each.found[0], each.cell.options
    limit = HALF if options.get("precision") else EXACT
    layers = _of_ddpfix(each) and each.cell.model != "branches"
    wrong = {
        "ranks have different parameters": any(one["steps"] != first["steps"] for one in each.found),
        "ranks skip different layers": layers and any(one["ran"] != first["ran"] for one in each.found),
        "ddpfix names other layers": not all(one["known"] for one in each.found),
        "gradients": not all(one["gradient"] <= limit for one in each.found),
        f"parameters apart by {max(one['parameters'] for one in each.found):.1e}": any(
            one["same"] != len(one["steps"]) for one in each.found
        ),
        "not finite": not all(one["finite"] for one in each.found),
        "nothing was unused": first["unused"] == 0,
        "the mode was not in force": first["flag"] != _flag(each.cell.mode, bool(first["flag"])),
        "the scale": not all(_scales(one["scales"], options) for one in each.found),
    }
    return [what for what, is_so in wrong.items() if is_so]


def _flag(mode: str, otherwise: bool) -> bool:
    """Whether DDP has to have the flag; ``auto`` chooses."""
    return otherwise if mode == "auto" else not mode.startswith("late")


def _scales(scales: Sequence[float], options: Dict[str, Any]) -> bool:
    """The scale is halved once, in the step with an inf."""
    if not options.get("scaled"):
        return set(scales) == {1.0}
    overflow = options["overflow"]
    return list(scales) == [1024.0] * overflow + [512.0] * (len(scales) - overflow)


def _syncs(each: Outcome, others: Sequence[Outcome]) -> List[str]:
    if not _of_ddpfix(each):
        return []
    if each.found[0]["flag"]:
        # What the flag costs is torch's own, and is shown.
        return []
    unseen = any(one["cuda"] and not one["counts"]["launches"] for one in each.found)
    wrong = ["the profiler saw no call of CUDA"] if unseen else []
    base = _find(others, each, "plain", "rate 0")
    if base is None:
        return [*wrong, "there is nothing to compare it with"]
    for mine, theirs in zip(each.found, base.found):
        wrong += _more(mine["counts"], theirs["counts"], 0)
        if mine["warned"] > theirs["warned"]:
            wrong.append(f"warnings {mine['warned']:g} instead of {theirs['warned']:g}")
        # Replicas are compared in one of these two steps.
        wrong += [f"in a look: {what}" for what in _more(mine["look"], theirs["look"], LOOK)]
    return list(dict.fromkeys(wrong))


def _more(mine: Dict[str, float], theirs: Dict[str, float], allowed: int) -> List[str]:
    """Which waits there are more than in plain torch, apart from those of gloo's collectives in their own threads."""
    # Where the profiler does not see those threads, there is nothing to take away.
    own, others = ({**each, "waits": max(0, each["waits"] - each.get("gloo", 0))} for each in (mine, theirs))
    return [
        f"{name} {own[name]:g} instead of {others[name]:g}"
        for name in ("waits", "copies")
        if own[name] > others[name] + allowed
    ]


def _find(others: Sequence[Outcome], each: Outcome, mode: str, kind: str) -> Optional[Outcome]:
    wanted = (each.cell.section, each.cell.group, each.cell.model, mode, kind)
    for other in others:
        cell = other.cell
        if other.found and (cell.section, cell.group, cell.model, cell.mode, cell.kind) == wanted:
            return other
    return None


def _compile(each: Outcome, others: Sequence[Outcome]) -> List[str]:
    base = _find(others, each, "flag", each.cell.kind)
    first = each.found[0]
    known = first["gradient"] is not None
    wrong = {
        "ranks have different parameters": any(one["steps"] != first["steps"] for one in each.found),
        "not finite": not all(one["finite"] for one in each.found),
        "ddpfix does not know the layers": _of_ddpfix(each) and not known,
        "gradients": known and not all(one["gradient"] <= COMPILED for one in each.found),
        "nothing was unused": known and first["unused"] == 0,
        # Which layers are skipped must not make graphs of their own.
        "more graphs than torch's": base is not None and first["graphs"] > base.found[0]["graphs"] + 2,
    }
    return [what for what, is_so in wrong.items() if is_so]


def _fsdp(each: Outcome, _: Sequence[Outcome]) -> List[str]:
    first = each.found[0]
    ran = [len(names) for names in first["ran"]]
    # Each layer in forward and in backward, and the root; alone, a rank has nothing to gather.
    gathers = first["gathers"] == [1 + 2 * count for count in ran] or len(each.found) == 1
    wrong = {
        "ranks run different layers": any(one["ran"] != first["ran"] for one in each.found),
        "every layer ran": _of_ddpfix(each) and set(ran) == {4} and len(each.found) > 1,
        "gathers": _of_ddpfix(each) and not gathers,
        "parameters": not all(one["apart"] <= SHARDED for one in each.found),
    }
    return [what for what, is_so in wrong.items() if is_so]


def _alike(each: Outcome, others: Sequence[Outcome]) -> List[str]:
    """A program that torch trains rightly is trained the same, without a wait more."""
    first = each.found[0]
    wrong = _named(each, others)
    if any(one["steps"] != first["steps"] for one in each.found):
        wrong.append("ranks have different parameters")
    if not all(one["finite"] for one in each.found):
        wrong.append("not finite")
    if each.cell.mode == each.cell.options["base"]:
        return wrong
    base = _find(others, each, each.cell.options["base"], each.cell.kind)
    if base is None:
        return [*wrong, "there is nothing to compare it with"]
    if [one["steps"] for one in each.found] != [one["steps"] for one in base.found]:
        wrong.append(f"trained otherwise than {base.cell.mode}")
    # What the flag costs is torch's own.
    if base.cell.mode == "plain":
        for mine, theirs in zip(each.found, base.found):
            wrong += _more(mine["counts"], theirs["counts"], 0) if mine["counts"] else []
    return list(dict.fromkeys(wrong))


def _named(each: Outcome, _: Sequence[Outcome]) -> List[str]:
    """What the ranks themselves have found wrong."""
    return list(dict.fromkeys(what for one in each.found for what in one["wrong"]))


def _funasr(each: Outcome, _: Sequence[Outcome]) -> List[str]:
    return [] if each.found[0]["ok"] else ["not as expected"]


def _speed(each: Outcome, _: Sequence[Outcome]) -> List[str]:
    """Times are not judged."""
    return [f"{mode}: {one['error']}" for mode, one in each.found[0]["modes"].items() if one["error"]]


CHECKS: Dict[str, Callable[[Outcome, Sequence[Outcome]], List[str]]] = {
    "exactness": _exact,
    "precision": _exact,
    "speed": _speed,
    "table": _speed,
    "syncs": _syncs,
    **dict.fromkeys(("loops", "streams", "graphs"), _alike),
    **dict.fromkeys(("trace", "hangs", "starts", "memory"), _named),
    "compile": _compile,
    "fsdp": _fsdp,
    "funasr": _funasr,
}


def figures(each: Outcome, mode: str) -> List[str]:
    """Step time, ratio, peaks, what stays, layers, and the number of turns of a mode."""
    ranks = [one["modes"][mode] for one in each.found]
    turns: List[float] = ranks[0]["turns"]
    base = each.found[0]["modes"][each.cell.options["modes"][0]]["turns"]
    ratio = median(mine / other for mine, other in zip(turns, base)) if base else float("nan")
    time = f"{median(turns):.1f} ({min(turns):.1f} to {max(turns):.1f})"
    peaks = [max(one[name] for one in ranks) for name in ("peak", "reserved")]
    memory = [f"{peak:.0f}" if peak else "-" for peak in peaks]
    stays = f"{max(one['left'] for one in ranks):.1f}" if peaks[0] else "-"
    layers = max(sum(one["layers"]) / len(one["layers"]) for one in ranks)
    count = f"{len(turns)} of {each.found[0]['steps']} steps"
    return [time, f"{ratio:.2f}", *memory, stays, f"{layers:.1f}", count]
