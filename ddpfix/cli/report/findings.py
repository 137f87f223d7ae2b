"""What a run's data say, in sentences: they stand at the top of the page, and are what figures are called by."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional

from ddpfix.cli.report import summary, words

Data = Dict[str, Any]
# What a finding means for the reader: to be looked at, fine, or neither.
BAD, GOOD, PLAIN = "attention", "good", "plain"
PART_NAMES = {
    "data": "loading data",
    "forward": "the forward",
    "backward": "the backward",
    "wait": "waiting for other ranks",
    "optimizer": "the optimizer",
    "other": "work outside of these parts",
}


class Finding(NamedTuple):
    """One sentence about one subject; the subject is also the name of a part of the page."""

    subject: str
    level: str
    text: str


def findings(data: Data) -> List[Finding]:
    """Return the findings of a run, what needs attention first."""
    makers = (_ends, _layers, _straggler, _outliers, _memory, _unused, _loss, _gradients)
    found = [each for make in makers for each in make(data)]
    order = (BAD, PLAIN, GOOD)
    return sorted(found, key=lambda each: order.index(each.level))


def of(subject: str, data: Data) -> str:
    """Return the findings about one subject, as one text; empty if there is none."""
    return " ".join(each.text for each in findings(data) if each.subject == subject)


def _ends(data: Data) -> List[Finding]:
    found = []
    for each in data["ends"]:
        who = words.ranks(each["ranks"])
        if each["how"] == "no last line":
            text = f"The trace of {who} has no last line: killed, or still running when this page was made."
            found.append(Finding("ranks", BAD, text))
        elif each["how"] != "ended":
            found.append(Finding("ranks", BAD, f"{who[0].upper()}{who[1:]} ended so: {each['how']}"))
    if data["ranks_missing_count"]:
        who = words.ranks(data["ranks_missing"], data["ranks_missing_count"])
        found.append(Finding("ranks", BAD, f"There is no trace of {who}, of {data['world_size']:,} ranks."))
    if data["one_row_stands_for"] > 1:
        text = f"The trace was near its bound: up to {data['one_row_stands_for']} steps share a row."
        found.append(Finding("ranks", PLAIN, text))
    if not found:
        ranks = {1: "The only rank", 2: "Both ranks"}.get(data["ranks"], f"All {data['ranks']:,} ranks")
        found.append(Finding("ranks", GOOD, f"{ranks} ended in order, after {words.count(data['steps'], 'step')}."))
    return found


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
        return [Finding("layers", BAD, text)]
    mean = layers["mean_skipped"] or 0.0
    skipped = f"{mean:.1f} of {words.count(len(layers['names']), 'layer')} in a step on average"
    if compared:
        text = f"All ranks skipped the same layers in each of {words.count(compared, 'step')}: {skipped}."
        return [Finding("layers", GOOD, text)]
    return [Finding("layers", PLAIN, f"One rank alone is in the trace; it skipped {skipped}.")]


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
        f"Rank {found['rank']} is the straggler: its own work takes {words.seconds(found['own'])} a step, that of the"
        f" others {words.seconds(found['others'])} (medians), which wait {words.percent(found['others_wait_share'])} of"
        f" their time. It was the slowest in {found['slowest_steps']:,} of"
        f" {words.count(data['time']['judged_steps'], 'step')}."
    )
    if found["part"] and found["part_seconds"] > found["part_others"]:
        name = PART_NAMES[found["part"]]
        text += (
            f" Most of the difference is {name}: {words.seconds(found['part_seconds'])} a step against"
            f" {words.seconds(found['part_others'])}."
        )
    return [Finding("time", BAD, text)]


def _outliers(data: Data) -> List[Finding]:
    """Single steps that took a rank many times as long as its others."""
    found = data["time"]["outliers"]
    if not found["count"]:
        return []
    worst = found["steps"][0]
    text = (
        f"{words.count(found['count'], 'step')} took a rank more than four times as long as its others (a long batch,"
        f" an evaluation, a save): step {worst['step']:,} took rank {worst['rank']} {words.seconds(worst['own'])},"
        f" against {words.seconds(worst['usual'])}."
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
    text = (
        f"{what} rose from {words.size(first['bytes'])} (step {first['step']:,}) to {words.size(last['bytes'])}, on"
        f" rank {last['rank']} in step {last['step']:,}{_batch(last)}."
    )
    level = BAD if last["bytes"] >= first["bytes"] * 1.5 else PLAIN
    return [Finding("memory", level, text)]


def _batch(record: Dict[str, Any]) -> str:
    if not record["shape"]:
        return ""
    padding = f", {words.percent(record['padding'])} of it padding" if record["padding"] is not None else ""
    return f", whose largest batch was {words.shape(record['shape'])}{padding}"


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


def _gradients(data: Data) -> List[Finding]:
    sent, unsent = data["gradients"]["sent"], data["gradients"]["unsent"]
    if not sent and not unsent:
        return []
    text = f"{words.size(sent)} of gradients were communicated by all ranks together"
    if unsent:
        text += (
            f"; {words.size(unsent)} ({words.percent(unsent / (sent + unsent))}) were left out, as no rank used them"
        )
    return [Finding("time", PLAIN, f"{text}.")]


def rows(data: Data) -> List[Dict[str, Any]]:
    """Return the findings as plain data, for ``--json``."""
    return [each._asdict() for each in findings(data)]


def first(values: List[Optional[float]]) -> Optional[float]:
    """Return the first value that is known."""
    return next((value for value in values if value is not None), None)
