"""A probe's findings for people: plain lines, of data as :meth:`ddpfix.probing.result.Result.as_dict` gives it."""

from __future__ import annotations

import textwrap
from typing import Any, Dict, List, Mapping, Sequence

from ddpfix.rules.names import grouped, short

_WIDTH = 118
# Lines of a list of parameters or modules.
_MOST = 12


def of_model(found: Mapping[str, Any]) -> List[str]:
    """Return the lines on one model."""
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
    lines += _entry("never called", _short(found["never_ran"]))
    lines += _entry("skips layers", [_skipping(entry) for entry in _alike(found["skips"], "rate")])
    lines += _entry("other reasons", found["reasons"])
    lines += _entry("checkpointing", [_checkpoint(entry) for entry in _alike(found["checkpointing"], "reentrant")])
    lines += _entry("shared parameters", _short([" = ".join(names) for names in found["shared"]]))
    lines += _entry("called repeatedly", _short([f"{name}: {n} times a pass" for name, n in found["repeated"].items()]))
    lines += _entry("setting", [found["setting"] or "none"])
    lines += _entry("line to paste", [found["line"]] if found["line"] else [])
    lines += _entry("advice", found["advice"])
    lines += _entry("note", found["notes"])
    return lines


def of_program(seen: Mapping[str, Any]) -> List[str]:
    """Return the lines on a program, of data as the command has it."""
    lines = [f"ddpfix probe: {seen['end']}"]
    lines += _entry("called past the wrapper", seen["past"])
    lines += _entry("settings", seen["settings"])
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
        whole = groups.setdefault((entry["kind"], entry[key], entry.get("layers")), {**entry, "names": []})
        whole["names"].append(entry["name"] or "the model")
    return list(groups.values())


def _skipping(entry: Mapping[str, Any]) -> str:
    layers = f" for each of {entry['layers']} layers" if entry["layers"] else ""
    seen = f", {entry['seen']:.2g} in these steps" if entry["seen"] is not None and len(entry["names"]) == 1 else ""
    return f"{short(entry['names'], 4)} ({entry['kind']}): rate {entry['rate']:g}{layers}{seen}"


def _checkpoint(entry: Mapping[str, Any]) -> str:
    kind = "reentrant" if entry["reentrant"] else "non-reentrant"
    return f"{short(entry['names'], 4)} ({entry['kind']}): {kind}"
