"""What a run's data say, in sentences: they stand at the top of the page, and are what figures are called by."""

from __future__ import annotations

from typing import Any, Dict, List

from ddpfix.cli.report import endings, summary, words
from ddpfix.cli.report.words import BAD, GOOD, PLAIN, Finding

Data = Dict[str, Any]
PART_NAMES = {
    "data": "loading data",
    "forward": "the forward",
    "backward": "the backward",
    "wait": "waiting for other ranks",
    "optimizer": "the optimizer",
    "other": "work outside of these parts",
}
# What makes one rank slower than the others in a part of the step.
_ADVICE = {
    "data": "compare its disk with that of the others, and give its DataLoader more workers (num_workers)",
    "forward": "compare the lengths of its batches with those of the others, then its device (clock, other load)",
    "optimizer": "compare its device and its processors with those of the others (clock, temperature, other load)",
    "other": "see what this rank alone does between steps: logging, evaluation, saving",
}
_ADVICE["backward"] = _ADVICE["forward"]
_ADVICE_ON_BATCHES = (
    "bound batches by their padded size (frames, tokens) instead of the number of clips, and let the longest come first"
)


def findings(data: Data) -> List[Finding]:
    """Return the findings of a run, what needs attention first."""
    makers = (endings.make, _layers, _straggler, _outliers, _memory, _unused, _loss)
    found = [each for make in makers for each in make(data)]
    order = (BAD, PLAIN, GOOD)
    return sorted(found, key=lambda each: order.index(each.level))


def of(subject: str, data: Data) -> str:
    """Return the findings about one subject, as one text; empty if there is none."""
    return " ".join(each.text for each in findings(data) if each.subject == subject)


def _layers(data: Data) -> List[Finding]:
    layers = data["layers"]
    if layers is None:
        return []
    parted, compared = layers["steps_with_disagreement"], layers["compared_steps"]
    if parted:
        worst = max(range(len(layers["names"])), key=lambda layer: layers["disagreed_steps"][layer])
        text = (
            f"Ranks skipped different layers in {parted:,} of {words.count(compared, 'step')}, first in step"
            f" {layers['first_step_with_disagreement']:,}; most often it was {layers['names'][worst]}"
            f" ({words.count(layers['disagreed_steps'][worst], 'step')})."
        )
        return [Finding("layers", BAD, text, [_advice_on_layers(data)])]
    mean = layers["mean_skipped"] or 0.0
    if not mean:
        return [Finding("layers", GOOD, f"No rank skipped a layer in {words.count(data['steps'], 'step')}.")]
    skipped = f"{mean:.1f} of {words.count(len(layers['names']), 'layer')} in a step on average"
    if compared:
        text = f"All ranks skipped the same layers in each of {words.count(compared, 'step')}: {skipped}."
        return [Finding("layers", GOOD, text)]
    return [Finding("layers", PLAIN, f"One rank alone is in the trace; it skipped {skipped}.")]


def _advice_on_layers(data: Data) -> str:
    chosen = [each for each in data["ddpfix_settings"] if each["name"] == "layerdrop" and each["value"] != "sync"]
    if chosen:
        name = f"DDPFIX_LAYERDROP={chosen[0]['value']}"
        return f"advice: {name} leaves each rank to draw for itself; without it all ranks skip the same layers"
    return "advice: docs/layerdrop.md lists the models whose ranks ddpfix has skip the same layers, and how to add one"


def _straggler(data: Data) -> List[Finding]:
    found = data["time"]["straggler"]
    if found is None:
        return []
    if not found["clear"]:
        own, others = words.seconds(found["own"]), words.seconds(found["others"])
        if data["time"]["judged_steps"] < summary.ENOUGH:
            return []
        text = f"No straggler: the slowest rank ({found['rank']}) needs {own} a step, the others {others} (medians)"
        often = f"{found['slowest_steps']:,} of {words.count(data['time']['judged_steps'], 'step')}"
        return [Finding("time", GOOD, f"{text}; it was the slowest in {often}.")]
    text = (
        f"Rank {found['rank']} is the straggler: it needs {words.seconds(found['own'])} a step, the others"
        f" {words.seconds(found['others'])} (medians, without waiting){_cost(found)}. It was the slowest in"
        f" {found['slowest_steps']:,} of {words.count(data['time']['judged_steps'], 'step')}."
    )
    if found["part"] and found["part_seconds"] > found["part_others"]:
        name = PART_NAMES[found["part"]]
        text += (
            f" Most of the difference is {name}: {words.seconds(found['part_seconds'])} a step against"
            f" {words.seconds(found['part_others'])}."
        )
        return [Finding("time", BAD, text, [f"advice: {_ADVICE[found['part']]}"])]
    return [Finding("time", BAD, text)]


def _cost(found: Data) -> str:
    share = found["others_wait_share"]
    return f", and the others wait {words.percent(share)} of their time" if share and share >= 0.01 else ""


def _outliers(data: Data) -> List[Finding]:
    """Single steps that took a rank many times as long as its others."""
    found = data["time"]["outliers"]
    if not found["count"]:
        return []
    worst = found["steps"][0]
    text = (
        f"{words.count(found['count'], 'step')} took a rank more than four times as long as its others (a long batch,"
        f" an evaluation, a save): the longest is step {worst['step']:,} of rank {worst['rank']} with"
        f" {words.seconds(worst['own'])}, against {words.seconds(worst['usual'])} in its usual step."
    )
    return [Finding("time", PLAIN, text)]


def _memory(data: Data) -> List[Finding]:
    records = data["memory"]["records"]
    if not records:
        return []
    first, last = records[0], records[-1]
    what = "Peak memory of the GPU" if data["memory"]["of"] == "gpu" else "Resident memory of the process"
    if last["bytes"] < first["bytes"] * 1.05:
        text = (
            f"{what} stayed flat: {words.size(last['bytes'])} at most, on rank {last['rank']} in step {last['step']:,}."
        )
        return [Finding("memory", GOOD, text)]
    # Each record is higher than the one before: the batch behind the largest rise is what a reader looks for.
    before, most = max(zip(records, records[1:]), key=lambda pair: float(pair[1]["bytes"] - pair[0]["bytes"]))
    rise = "" if most is last else f" by step {last['step']:,}, {words.size(most['bytes'] - before['bytes'])} of it"
    text = (
        f"{what} rose from {words.size(first['bytes'])} in step {first['step']:,} to {words.size(last['bytes'])}"
        f"{rise} in step {most['step']:,} of rank {most['rank']}{_batch(most)}."
    )
    if last["bytes"] < first["bytes"] * 1.5:
        return [Finding("memory", PLAIN, text)]
    return [Finding("memory", BAD, text, [f"advice: {_ADVICE_ON_BATCHES}"] if most["shape"] else [])]


def _batch(record: Dict[str, Any]) -> str:
    if not record["shape"]:
        return ""
    padding = f", {words.percent(record['padding'])} of it padding" if record["padding"] is not None else ""
    return f" (largest batch {words.shape(record['shape'])}{padding})"


def _unused(data: Data) -> List[Finding]:
    unused = data["unused"]
    if not unused["known"]:
        return []
    if not unused["groups"]:
        if unused["told"] == data["rows"]:
            return [Finding("unused", GOOD, "Every parameter had a gradient in every step.")]
        text = f"Every parameter had a gradient in the {unused['told']:,} of {data['rows']:,} rows that tell."
        return [Finding("unused", PLAIN, text)]
    whole = f"{unused['parameters']:,} parameters" if unused["parameters"] else "the parameters"
    found = []
    always = [each["name"] for each in unused["groups"] if each["always"]]
    if always:
        text = f"{unused['always']:,} of {whole} had no gradient in any step: {words.listed(always)}."
        found.append(Finding("unused", BAD, text))
    sometimes = [each["name"] for each in unused["groups"] if not each["always"]]
    if sometimes:
        text = f"{unused['sometimes']:,} of {whole} had no gradient in some steps: {words.listed(sometimes)}."
        found.append(Finding("unused", PLAIN, text))
    return found


def _loss(data: Data) -> List[Finding]:
    lost = data["loss_lost"]
    if not lost["count"]:
        return []
    step, rank = lost["first"]
    text = f"The loss was not a finite number {lost['count']:,} times, first in step {step:,} on rank {rank}."
    return [Finding("loss", BAD, text)]


def rows(data: Data) -> List[Dict[str, Any]]:
    """Return the findings as plain data, for ``--json``."""
    return [each._asdict() for each in findings(data)]
