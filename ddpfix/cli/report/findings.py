"""The findings of a run, in sentences: they stand at the top of the page."""

from __future__ import annotations

from typing import Any, Dict, List

from ddpfix.cli.report import endings, summary, words
from ddpfix.rules.finding import BAD, GOOD, PLAIN, Finding

Data = Dict[str, Any]
PART_NAMES = {
    "data": "data loading",
    "forward": "the forward",
    "backward": "the backward",
    "wait": "waiting for other ranks",
    "optimizer": "the optimizer",
    "other": "work outside these parts",
}
# What makes one rank slower than the others in a part of the step.
_ADVICE = {
    "data": "check its disk, and raise num_workers of its DataLoader",
    "forward": "compare the lengths of its batches with other ranks, then its device (clock, other load)",
    "optimizer": "compare its device and CPU with other ranks (clock, temperature, other load)",
    "other": "check what only this rank does between steps: logging, evaluation, saving",
}
_ADVICE["backward"] = _ADVICE["forward"]
_ADVICE_ON_BATCHES = (
    "limit batches by padded size (frames, tokens) instead of by number of clips, and put the longest batch first"
)


def findings(data: Data) -> List[Finding]:
    """Return the findings of a run, what needs attention first."""
    makers = (endings.make, _layers, _straggler, _outliers, _memory, _unused)
    found = [each for make in makers for each in make(data)]
    order = (BAD, PLAIN, GOOD)
    once = {(each.kind, each.where): each for each in found}
    return sorted(once.values(), key=lambda each: order.index(each.level))


def _layers(data: Data) -> List[Finding]:
    layers = data["layers"]
    if layers is None:
        return []
    parted, compared = layers["steps_with_disagreement"], layers["compared_steps"]
    if parted:
        worst = max(range(len(layers["names"])), key=lambda layer: layers["disagreed_steps"][layer])
        text = (
            f"Ranks skipped different layers in {parted:,} of {words.count(compared, 'step')}, first in step"
            f" {layers['first_step_with_disagreement']:,}. Most affected: {layers['names'][worst]}"
            f" ({words.count(layers['disagreed_steps'][worst], 'step')})."
        )
        chosen = [each["value"] for each in data["ddpfix_settings"] if each["name"] == "layerdrop"]
        advice = "docs/layerdrop.md lists the supported models, and how to add one"
        if chosen not in ([], ["sync"]):
            advice = f"unset DDPFIX_LAYERDROP={chosen[0]}, which lets each rank draw its own layers"
        return [Finding("layers", (), text, advice=advice)]
    mean = layers["mean_skipped"] or 0.0
    if not mean:
        return [Finding("layers", (), f"No layer was skipped in {words.count(data['steps'], 'step')}.", level=GOOD)]
    skipped = f"{mean:.1f} of {words.count(len(layers['names']), 'layer')} a step"
    if compared:
        text = f"All ranks skipped the same layers in all {words.count(compared, 'step')} (on average {skipped})."
        return [Finding("layers", (), text, level=GOOD)]
    return [Finding("layers", (), f"The trace has one rank, which skipped {skipped} on average.", level=PLAIN)]


def _straggler(data: Data) -> List[Finding]:
    found = data["time"]["straggler"]
    if found is None:
        return []
    if not found["clear"]:
        own, others = words.seconds(found["own"]), words.seconds(found["others"])
        if data["time"]["judged_steps"] < summary.ENOUGH:
            return []
        often = f"{found['slowest_steps']:,} of {words.count(data['time']['judged_steps'], 'step')}"
        text = f"No straggler. Slowest: rank {found['rank']} with {own} a step (other ranks {others}; medians)"
        return [Finding("time", (), f"{text}, slowest in {often}.", level=GOOD)]
    share = found["others_wait_share"] or 0.0
    cost = f"; they wait {words.percent(share)} of their time" if share >= 0.01 else ""
    text = (
        f"Rank {found['rank']} is a straggler: {words.seconds(found['own'])} a step, other ranks"
        f" {words.seconds(found['others'])} (medians, waits excluded){cost}. It was the slowest in"
        f" {found['slowest_steps']:,} of {words.count(data['time']['judged_steps'], 'step')}."
    )
    if found["part"] and found["part_seconds"] > found["part_others"]:
        text += (
            f" Most of the difference is {PART_NAMES[found['part']]}: {words.seconds(found['part_seconds'])} a step,"
            f" other ranks {words.seconds(found['part_others'])}."
        )
        return [Finding("time", [found["rank"]], text, advice=_ADVICE[found["part"]])]
    return [Finding("time", [found["rank"]], text)]


def _outliers(data: Data) -> List[Finding]:
    """Return single steps that took a rank many times as long as its median."""
    found = data["time"]["outliers"]
    if not found["count"]:
        return []
    worst = found["worst"]
    text = (
        f"{words.count(found['count'], 'slow step')} (over 4x the median). Slowest: step {worst['step']:,} on rank"
        f" {worst['rank']}, {words.seconds(worst['own'])} (median {words.seconds(worst['usual'])})."
    )
    return [Finding("time", (), text, level=PLAIN)]


def _memory(data: Data) -> List[Finding]:
    records = data["memory"]["records"]
    if not records:
        return []
    first, last = records[0], records[-1]
    what = "GPU memory" if data["memory"]["of"] == "gpu" else "Process memory"
    if data["memory"]["growth"]:
        return [_growth(what, data["memory"]["growth"])]
    if last["bytes"] < first["bytes"] * 1.05:
        where = f"at most {words.size(last['bytes'])} (rank {last['rank']}, step {last['step']:,})"
        if data["unended"]:
            text = f"{what} was flat up to step {data['steps']:,}: {where}. The trace has no row of a later step."
            return [Finding("memory", (), text, level=PLAIN)]
        return [Finding("memory", (), f"{what} stayed flat: {where}.", level=GOOD)]
    # Each record is higher than the one before: the batch behind the largest rise is what a reader looks for.
    before, most = max(zip(records, records[1:]), key=lambda pair: float(pair[1]["bytes"] - pair[0]["bytes"]))
    batch = f" (largest batch {words.shape(most['shape'])})" if most["shape"] else ""
    text = (
        f"{what} rose from {words.size(first['bytes'])} in step {first['step']:,} to {words.size(last['bytes'])} in"
        f" step {last['step']:,}. Largest rise: {words.size(most['bytes'] - before['bytes'])} in step"
        f" {most['step']:,} on rank {most['rank']}{batch}."
    )
    if last["bytes"] < first["bytes"] * 1.5:
        return [Finding("memory", (), text, level=PLAIN)]
    return [Finding("memory", (), text, advice=_ADVICE_ON_BATCHES if most["shape"] else "")]


def _growth(what: str, growth: Data) -> Finding:
    (first, low), (last, high) = growth["first"], growth["last"]
    text = (
        f"{what} of rank {growth['rank']} rose {words.size(growth['a_step'])} a step with equal batches"
        f" ({words.shape(growth['shape'])}), from {words.size(low)} in step {first:,} to {words.size(high)} in step"
        f" {last:,}: something is kept (outputs, losses or metrics with their graph)."
    )
    return Finding(
        "memory", [growth["rank"]], text, advice="keep loss.item() or output.detach(), and reset metrics each epoch"
    )


def _unused(data: Data) -> List[Finding]:
    unused = data["unused"]
    if not unused["told"]:
        return []
    if not unused["groups"]:
        if unused["told"] == data["rows"]:
            return [Finding("unused", (), "Every parameter had a gradient in every step.", level=GOOD)]
        text = f"Every parameter had a gradient in the {unused['told']:,} of {data['rows']:,} rows that record it."
        return [Finding("unused", (), text, level=PLAIN)]
    whole = f"{unused['parameters']:,} parameters" if unused["parameters"] else "the parameters"
    found = []
    always = [each["name"] for each in unused["groups"] if each["always"]]
    if always:
        text = f"{unused['always']:,} of {whole} had no gradient in any step: {words.listed(always)}."
        found.append(Finding("unused", (), text))
    sometimes = [each["name"] for each in unused["groups"] if not each["always"]]
    if sometimes:
        text = f"{unused['sometimes']:,} of {whole} had no gradient in some steps: {words.listed(sometimes)}."
        found.append(Finding("unused", (), text, level=PLAIN))
    return found


def rows(data: Data) -> List[Dict[str, Any]]:
    """Return the findings as plain data, for ``--json``."""
    return [{"level": each.level, **each.data()} for each in findings(data)]
