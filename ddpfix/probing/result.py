"""What a probe found, as data and as lines for people. The command line reads it in a process without torch."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, List, Mapping, Sequence

from ddpfix.rules.names import grouped, short

_WIDTH = 118
# Lines of a list of parameters or modules.
_MOST = 12


@dataclass
class Skipping:
    """A module that skips layers at random.

    Attributes:
        name: the module, as ``named_modules`` has it.
        kind: its class.
        rate: the rate in force, the largest one where it has several.
    """

    name: str
    kind: str
    rate: float


@dataclass
class Checkpoint:
    """A module whose activations are recomputed in backward.

    Attributes:
        name: the module, as ``named_modules`` has it.
        kind: its class.
        reentrant: which kind of ``torch.utils.checkpoint`` it is.
    """

    name: str
    kind: str
    reentrant: bool


@dataclass
class Result:
    """What was seen of one model.

    A *pass* is a forward in training with the backward of its loss; parameters are named as by ``named_parameters``.

    Attributes:
        model: its class.
        steps: how many steps were taken.
        passes: how many passes there were in them.
        trainable: how many parameters ask for a gradient.
        frozen: how many do not.
        always: parameters that got no gradient in any pass.
        sometimes: parameters that got none in some passes, and in how many.
        why: for each of these parameters, the reason, as far as it is known.
        outside: those parameters that lie behind an output that is not part of the loss: DDP takes them for used.
        hidden: parameters with a gradient that DDP does not find behind the output (reentrant checkpointing): with the
            flag, it takes them for unused.
        twice: parameters that get a gradient more than once in one backward, which DDP ends with an error.
        skips: what skips layers at random.
        reasons: other known reasons why DDP has to look for unused parameters, of patches that are active.
        checkpointing: what is recomputed in backward.
        loss: which loss was used; "" where the program has its own.
        under: how DDP was asked for, where the program wraps the model.
        setting: the argument of DistributedDataParallel that follows, "" where none is needed.
        line: how the user of a toolkit sets that, in words and a line to paste; "" where the setting says it all.
        unused: the value of DDPFIX_UNUSED that follows.
        advice: what to do, in sentences.
        notes: what else was noticed.
    """

    model: str
    steps: int = 0
    passes: int = 0
    trainable: int = 0
    frozen: int = 0
    always: List[str] = field(default_factory=list)
    sometimes: Dict[str, int] = field(default_factory=dict)
    why: Dict[str, str] = field(default_factory=dict)
    outside: List[str] = field(default_factory=list)
    hidden: List[str] = field(default_factory=list)
    twice: List[str] = field(default_factory=list)
    skips: List[Skipping] = field(default_factory=list)
    reasons: List[str] = field(default_factory=list)
    checkpointing: List[Checkpoint] = field(default_factory=list)
    loss: str = ""
    under: str = ""
    setting: str = ""
    line: str = ""
    unused: str = "auto"
    advice: List[str] = field(default_factory=list)
    notes: List[str] = field(default_factory=list)

    def as_dict(self) -> Dict[str, Any]:
        """Return all of it as plain data, which JSON can hold."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(of_model(self.as_dict()))


def of_model(found: Mapping[str, Any]) -> List[str]:
    """Return the lines on one model, of data as :meth:`Result.as_dict` gives it."""
    lines = [
        f"{found['model']}: {found['trainable']} parameters train, {found['frozen']} are frozen;"
        f" {_count(found['steps'], 'step')}, {_count(found['passes'], 'pass', 'passes')} (forward and backward)"
        + (f", {found['under']}" if found["under"] else "")
    ]
    if found["loss"]:
        lines += _entry("loss", [found["loss"]])
    lines += _entry("no gradient, always", _without(found, found["always"]))
    lines += _entry("no gradient, sometimes", _without(found, list(found["sometimes"])))
    lines += _entry("cause", _short(list(dict.fromkeys(found["why"].values()))))
    lines += _entry("skips layers", [_skipping(entry) for entry in _alike(found["skips"], "rate")])
    lines += _entry("other reasons", found["reasons"])
    lines += _entry("checkpointing", [_checkpoint(entry) for entry in _alike(found["checkpointing"], "reentrant")])
    lines += _entry("setting", [found["setting"] or "none"])
    lines += _entry("line to paste", [found["line"]] if found["line"] else [])
    lines += _entry("advice", found["advice"])
    lines += _entry("note", found["notes"])
    return lines


def of_program(seen: Mapping[str, Any]) -> List[str]:
    """Return the lines on a program, of data as the command has it."""
    lines = [f"ddpfix probe: {seen['end']}"]
    lines += _entry("called past the wrapper", seen["past"])
    lines += _entry("ddpfix said", seen["said"])
    lines += _entry("note", seen["notes"])
    for model in seen["models"]:
        lines += ["", *of_model(model)]
    if not seen["models"]:
        lines.append("  no training forward of a model was observed")
    return lines


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _entry(title: str, lines: Sequence[str]) -> List[str]:
    """Return a title, and what belongs to it beside it and below."""
    wrapped: List[str] = []
    for line in lines:
        # The beginning of a line that lists parts stands out.
        inside = "    " if line.startswith("  ") else "  "
        wrapped += textwrap.wrap(line, _WIDTH - 27, subsequent_indent=inside, break_on_hyphens=False) or [""]
    return [f"  {title if number == 0 else '':<25}{line}" for number, line in enumerate(wrapped)]


def _without(found: Mapping[str, Any], names: List[str]) -> List[str]:
    """Parameters without gradient, by layer, and in how many passes."""
    if not names:
        return []
    lines = []
    for layer, parts in grouped(names).items():
        whole = [part if layer == "the model" else f"{layer}.{part}" for part in parts]
        counts = sorted({found["sometimes"].get(name, 0) for name in whole})
        passes = f" in {_span(counts)} of {found['passes']}" if counts[-1] else ""
        lines.append(f"  {layer}: {short(parts, 4)}{passes}")
    return [_count(len(names), "parameter"), *_short(lines)]


def _span(counts: List[int]) -> str:
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _short(lines: Sequence[str]) -> List[str]:
    return [*lines[:_MOST], *([f"and {len(lines) - _MOST} more"] if len(lines) > _MOST else [])]


def _alike(entries: Sequence[Mapping[str, Any]], key: str) -> List[Dict[str, Any]]:
    """Entries of one class with the same value of ``key`` as one, with all names."""
    groups: Dict[Any, Dict[str, Any]] = {}
    for entry in entries:
        whole = groups.setdefault((entry["kind"], entry[key]), {**entry, "names": []})
        whole["names"].append(entry["name"] or "the model")
    return list(groups.values())


def _skipping(entry: Mapping[str, Any]) -> str:
    return f"{short(entry['names'], 4)} ({entry['kind']}): rate {entry['rate']:g}"


def _checkpoint(entry: Mapping[str, Any]) -> str:
    kind = "reentrant" if entry["reentrant"] else "non-reentrant"
    return f"{short(entry['names'], 4)} ({entry['kind']}): {kind}"
