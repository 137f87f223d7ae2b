"""What is shown of each section, and what has to hold in it."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence

from tests.gpu.launch import Outcome

# Relative differences of gradients.
EXACT, HALF = 1e-6, 1e-3
# Copies of a comparison of the replicas, each of which is waited for: the sums of all parameters, and some elements.
LOOK = 2
# Columns of a row, and whether each thing that is wrong is so.
Row = Dict[str, str]
Wrong = Dict[str, bool]
Others = Sequence[Outcome]


class Seen(NamedTuple):
    """One line of a section: of a cell, or of one of its modes."""

    mode: str
    row: Row
    wrong: List[str]


class Section(NamedTuple):
    """One kind of cells: the title of its table, the note above it, and what is seen of a cell beside the others."""

    title: str
    note: str
    look: Callable[[Outcome, Others], List[Seen]]


def verdict(each: Outcome, others: Others) -> str:
    """``ok``, or what is wrong."""
    if each.left_out:
        return "left out"
    if each.error:
        return "FAILED"
    wrong = dict.fromkeys(what for seen in SECTIONS[each.cell.section].look(each, others) for what in seen.wrong)
    return f"FAILED: {'; '.join(wrong)}" if wrong else "ok"


def _one(each: Outcome, row: Row, wrong: Wrong, named: Sequence[str] = ()) -> List[Seen]:
    found = [*(what for what, is_so in wrong.items() if is_so), *named]
    return [Seen(each.cell.mode, row, list(dict.fromkeys(found)))]


def _of_ddpfix(each: Outcome) -> bool:
    return each.cell.mode not in ("plain", "flag")


def _equal(each: Outcome, name: str) -> bool:
    """Whether all ranks found the same."""
    return all(one[name] == each.found[0][name] for one in each.found)


def most(numbers: Iterable[float]) -> float:
    """The largest number; what is none must not pass for small."""
    return float(max(numbers, key=lambda value: (value != value, value)))


def _yes(truth: Any) -> str:
    return "yes" if truth else "no"


def _exact(each: Outcome, _: Others) -> List[Seen]:
    first, options = each.found[0], each.cell.options
    limit = HALF if options.get("precision") else EXACT
    # The branch of one model is chosen by each rank's own batch.
    by_batch = each.cell.model == "branches"
    row = {"flag": _yes(first["flag"]), "ranks equal": _yes(_equal(each, "steps"))}
    row.update({"layers alike": "by batch" if by_batch else _yes(_equal(each, "ran"))})
    row["gradient"] = f"{most(one['gradient'] for one in each.found):.1e}"
    row["as torch's flag"] = f"{min(one['same'] for one in each.found)} of {len(first['steps'])}"
    apart = most(one["parameters"] for one in each.found)
    wrong = {
        "ranks have different parameters": not _equal(each, "steps"),
        "ranks skip different layers": _of_ddpfix(each) and not by_batch and not _equal(each, "ran"),
        "ddpfix names other layers": not all(one["known"] for one in each.found),
        "gradients": not all(one["gradient"] <= limit for one in each.found),
        f"parameters apart by {apart:.1e}": any(one["same"] != len(one["steps"]) for one in each.found),
        "not finite": not all(one["finite"] for one in each.found),
        "nothing was unused": first["unused"] == 0,
        # ``auto`` chooses.
        "the mode was not in force": each.cell.mode != "auto" and first["flag"] == each.cell.mode.startswith("late"),
        "the scale": not all(_scales(one["scales"], options) for one in each.found),
    }
    return _one(each, row, wrong)


def _scales(scales: Sequence[float], options: Dict[str, Any]) -> bool:
    """The scale is halved once, in the step with an inf."""
    if not options.get("scaled"):
        return set(scales) == {1.0}
    overflow = options["overflow"]
    return list(scales) == [1024.0] * overflow + [512.0] * (len(scales) - overflow)


def _syncs(each: Outcome, others: Others) -> List[Seen]:
    first = each.found[0]
    counts, named = first["counts"], {"copies", "waits", "items", "launches"}
    row = {"flag": _yes(first["flag"]), **{name: f"{counts[name]:g}" for name in ("waits", "copies", "items")}}
    row.update(warned=f"{first['warned']:g}", look=f"{first['look']['waits']:g}, {first['look']['copies']:g}")
    which = ", ".join(f"{name} {count:g}" for name, count in sorted(counts.items()) if name not in named)
    row["which waits"] = which or "-"
    if not _of_ddpfix(each) or first["flag"]:
        # What the flag costs is torch's own, and is shown.
        return _one(each, row, {})
    base = _base(others, each, "plain", "rate 0")
    wrong = {
        "the profiler saw no call of CUDA": any(one["cuda"] and not one["counts"]["launches"] for one in each.found),
        "there is nothing to compare it with": base is None,
    }
    more: List[str] = []
    for mine, theirs in zip(each.found, base.found if base is not None else []):
        more += _more(mine["counts"], theirs["counts"], 0)
        if mine["warned"] > theirs["warned"]:
            more.append(f"warnings {mine['warned']:g} instead of {theirs['warned']:g}")
        # Replicas are compared in one of these two steps.
        more += [f"in a look: {what}" for what in _more(mine["look"], theirs["look"], LOOK)]
    return _one(each, row, wrong, more)


def _more(mine: Dict[str, float], theirs: Dict[str, float], allowed: int) -> List[str]:
    """Which waits there are more than in plain torch, apart from those of gloo's collectives in their own threads."""
    # Where the profiler does not see those threads, there is nothing to take away.
    own, others = ({**each, "waits": max(0, each["waits"] - each.get("gloo", 0))} for each in (mine, theirs))
    return [
        f"{name} {own[name]:g} instead of {others[name]:g}"
        for name in ("waits", "copies")
        if own[name] > others[name] + allowed
    ]


def _base(others: Others, each: Outcome, mode: str, kind: str) -> Optional[Outcome]:
    """What a cell is compared with."""
    wanted = (each.cell.section, each.cell.group, each.cell.model, mode, kind)
    for other in others:
        cell = other.cell
        if other.found and (cell.section, cell.group, cell.model, cell.mode, cell.kind) == wanted:
            return other
    return None


def _alike(each: Outcome, others: Others) -> List[Seen]:
    """A program that torch trains rightly is trained the same, without a wait more."""
    first, against = each.found[0], each.cell.options["base"]
    itself = each.cell.mode == against
    row = {"steps": str(len(first["steps"])), "as": "" if itself else against}
    row["waits a step"] = f"{first['counts']['waits'] / 2:g}" if first["counts"] else "-"
    row["found"] = first["said"] or "-"
    base = each if itself else _base(others, each, against, each.cell.kind)
    steps = [[one["steps"] for one in outcome.found] for outcome in (each, base) if outcome is not None]
    wrong = {
        "ranks have different parameters": not _equal(each, "steps"),
        "not finite": not all(one["finite"] for one in each.found),
        "there is nothing to compare it with": base is None,
        f"trained otherwise than {against}": steps[0] != steps[-1],
    }
    named = [what for one in each.found for what in one["wrong"]]
    # What the flag costs is torch's own.
    for mine, theirs in zip(each.found, base.found if base is not None and against == "plain" else []):
        named += _more(mine["counts"], theirs["counts"], 0) if mine["counts"] else []
    return _one(each, row, wrong, named)


def _named(each: Outcome, _: Others) -> List[Seen]:
    """What the ranks themselves have found wrong."""
    return _one(
        each, {"found": each.found[0]["said"] or "-"}, {}, [what for one in each.found for what in one["wrong"]]
    )


def _speed(each: Outcome, _: Others) -> List[Seen]:
    """A line for each mode, with ratios to the first one in the same turns; times are not judged."""
    modes = each.found[0]["modes"]
    base = modes[each.cell.options["modes"][0]]["turns"]
    seen = []
    for mode in each.cell.options["modes"]:
        ranks: List[Dict[str, Any]] = [one["modes"][mode] for one in each.found]
        error, turns = ranks[0]["error"], ranks[0]["turns"]
        if error:
            seen.append(Seen(mode, {"ms a step": f"error: {error}"}, [f"{mode}: {error}"]))
            continue
        ratio = median(mine / other for mine, other in zip(turns, base)) if base else float("nan")
        row = {"ms a step": f"{median(turns):.1f} ({min(turns):.1f} to {max(turns):.1f})", "ratio": f"{ratio:.2f}"}
        row["layers"] = f"{max(sum(one['layers']) / len(one['layers']) for one in ranks):.1f}"
        peak = max(one["peak"] for one in ranks)
        if ranks[0]["counts"]:
            for name in ("waits", "copies"):
                row[f"{name} a step"] = f"{max(one['counts'].get(name, 0.0) for one in ranks):.1f}" if peak else "-"
        memory = {"peak allocated, MB": "peak", "peak reserved, MB": "reserved", "stays, MB": "left"}
        row.update({title: f"{max(one[n] for one in ranks):.0f}" if peak else "-" for title, n in memory.items()})
        row["turns"] = f"{len(turns)} of {each.found[0]['steps']} steps"
        seen.append(Seen(mode, row, []))
    return seen


def torch_alone(outcomes: Sequence[Outcome]) -> List[Outcome]:
    """What torch cannot do here without ddpfix either is left out, and no failure of ours."""
    found = []
    for each in outcomes:
        base = [one for one in outcomes if one.cell == replace(each.cell, mode="plain")]
        reason = base[0].error if each.cell.section == "graphs" and base else ""
        own = next((one["left_out"] for one in each.found if one.get("left_out")), "")
        if reason or own:
            each = Outcome(each.cell, left_out=own or f"torch alone cannot do it here ({reason})")
        found.append(each)
    return found


# The most important ones first, as they are reported; launches are ordered by :mod:`tests.gpu.cells`.
SECTIONS: Dict[str, Section] = {
    "syncs": Section(
        "Host-device synchronisations a step",
        "*Waits*: calls of CUDA in which the host waits, *copies*: to memory that is not pinned, *items*: "
        "numbers that Python asks of a tensor, on the CPU too (LayerDrop's own draws are some), all seen by "
        "the profiler; *warned*: by `torch.cuda.set_sync_debug_mode`. Without the flag, ddpfix may add no "
        "wait, copy or warning to those of plain DDP with the same model at rate 0; waits of gloo's own collectives "
        "are left aside. *Look*: waits and copies of the two steps in which replicas are compared, against two such "
        f"steps in plain torch at most {LOOK} more of each.",
        _syncs,
    ),
    "loops": Section(
        "Loops",
        "Trained in plain torch and under ddpfix: the parameters have to be the same bit for bit after each step, "
        "and the host may wait no more often. *Two checkpoints* is an error in plain torch, which is averaged by hand.",
        _alike,
    ),
    "exactness": Section(
        "Exactness",
        "*Gradient*: the largest relative difference from the mean of the ranks' gradients without DDP (limit "
        f"{EXACT:g}). *As torch's flag*: after how many steps the parameters are bit for bit those of "
        "torch's own DDP with `find_unused_parameters=True`, without ddpfix, that leaves out the same layers.",
        _exact,
    ),
    "table": Section(
        "WavLM-large",
        "For docs/costs.md: it is in table.md in the output folder as well. Random weights, fused AdamW; the median of "
        "turns (the smallest to the largest), ratios to the first mode in the same turns. Memory is the peak of one "
        "rank from before the model was built; *stays*: what is still allocated when the model is gone.",
        _speed,
    ),
    "hangs": Section(
        "Waits that the hang watch sees",
        "The card sleeps for six seconds; after four of them ddpfix has to take the thread for one that waits.",
        _named,
    ),
    "trace": Section(
        "Trace",
        "Loss, norm and peak as read by hand, no question to the card from a thread of ddpfix, and one context.",
        _named,
    ),
    "streams": Section("Streams", "Bit for bit as torch with its flag.", _alike),
    "starts": Section(
        "Starts and ends of process groups",
        "A process of its own for each rank, in plain torch and under ddpfix: same parameters, the limit of the "
        "backend, and on a card an end that comes at most 0.2 s later.",
        _named,
    ),
    "memory": Section(
        "Memory of a comparison of replicas",
        "Three steps of one embedding; two of them are compared between ranks.",
        _named,
    ),
    "graphs": Section("CUDA graphs", "Bit for bit as in plain torch.", _alike),
    "precision": Section(
        "Mixed precision",
        "Columns as above; gradients are compared with those of the same autocast without DDP (limit "
        f"{HALF:g}). In the step with an inf the optimizer has to be left out on every rank, and the scale halved.",
        _exact,
    ),
    "funasr": Section(
        "FunASR", "Trainers of the installed release with a model of one parameter, on the card.", _named
    ),
}
