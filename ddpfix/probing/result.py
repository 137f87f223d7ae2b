"""What a probe found: as data, the setting that follows, and the lines for people, which need no torch.

DDP waits for the gradient of each parameter. With ``find_unused_parameters=True`` it looks for parameters that are not
behind the forward's output; it does not find those behind an output that the loss leaves out, and takes those behind a
reentrant checkpoint for unused though they get a gradient.
"""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, List, Mapping, Sequence

from ddpfix.rules.finding import grouped, short
from ddpfix.rules.no_gradient.names import collapsed, modules

FLAG = "find_unused_parameters=True"
_LATE = "or DDPFIX=1, which trains without the flag, with the same result"
_WIDTH = 118
# Lines of a list of parameters or modules.
_MOST = 12


@dataclass
class Result:
    """What was seen of one model.

    A *pass* is a forward in training with the backward of its loss; parameters are named as by ``named_parameters``.
    """

    # Its class.
    model: str
    steps: int = 0
    passes: int = 0
    # How many parameters ask for a gradient, and how many do not.
    trainable: int = 0
    frozen: int = 0
    # Parameters that got no gradient in any pass, or in some passes, and in how many; and the reasons that are known.
    always: List[str] = field(default_factory=list)
    sometimes: Dict[str, int] = field(default_factory=dict)
    why: Dict[str, str] = field(default_factory=dict)
    # Those of them that lie behind an output that is not part of the loss: DDP takes them for used.
    outside: List[str] = field(default_factory=list)
    # Parameters with a gradient that the flag takes for unused (reentrant checkpointing), and those that get one more
    # than once in one backward, which DDP ends with an error.
    hidden: List[str] = field(default_factory=list)
    twice: List[str] = field(default_factory=list)
    # Modules that skip layers at random: name, kind (the class) and rate, the largest where there are several.
    skips: List[Dict[str, Any]] = field(default_factory=list)
    # What is recomputed in backward: name, kind, and whether its checkpoint is reentrant.
    checkpointing: List[Dict[str, Any]] = field(default_factory=list)
    # Which loss was used; "" where the program has its own.
    loss: str = ""
    # How DDP was asked for, where a program trains the model.
    under: str = ""
    # The argument of DistributedDataParallel that follows ("": none), the line with which the user of a toolkit sets
    # it, the value of DDPFIX_UNUSED that follows, and what to do.
    setting: str = ""
    line: str = ""
    unused: str = "auto"
    advice: List[str] = field(default_factory=list)

    def as_dict(self) -> Dict[str, Any]:
        """Return all of it as plain data, which JSON can hold."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(of_model(self.as_dict()))

    def advise(self, names: Sequence[str]) -> None:
        """Fill ``setting``, ``unused`` and ``advice``, by the names of all parameters that train."""
        # What the names of the parameters of a module that skips layers begin with.
        inside = [(skip, f"{skip['name']}." if skip["name"] else "") for skip in self.skips]
        trains = [skip for skip, begin in inside if any(name.startswith(begin) for name in names)]
        skipping = [f"{skip['kind']} (rate {skip['rate']:g}) skips layers at random" for skip in trains]
        reasons = list(dict.fromkeys(skipping))
        # A layer that was skipped in each of a few steps runs in a later one.
        above = tuple(begin for _, begin in inside) if reasons else ()
        idle = [name for name in self.always if name not in self.outside and not name.startswith(above)]
        freeze = f"freeze {modules(collapsed(idle, names))} (requires_grad_(False)) if they should not train: "
        if reasons:
            self.advice.append(f"{FLAG}, which DDPFIX=1 sets: {'; '.join(reasons)}")
            self.advice += [f"{freeze}no step trained them"] if idle else []
        elif self.sometimes:
            why = "because not every step uses the same parameters (which rules out static_graph)"
            self.advice += [f"{FLAG}, {why}", _LATE]
        elif idle:
            self.advice += [f"{freeze}DDP then does not wait for them", f"or {FLAG}, if later steps use them", _LATE]
        elif not self.always:
            self.advice.append("nothing is needed: every trainable parameter got a gradient in every pass")
        if reasons or self.sometimes or idle:
            self.setting = FLAG
        if self.outside:
            self.unused = "late"
            self.advice.append(
                f"{modules(collapsed(self.outside, names))}: behind an output that is not part of the loss, where"
                f" {FLAG} does not help. Return only what the loss needs, or add 0.0 * output.sum() to the loss;"
                " or DDPFIX=1 DDPFIX_UNUSED=late"
            )
        if self.setting and self.hidden:
            self.advice.append(
                "reentrant checkpointing fails together with the flag: use_reentrant=False (DDPFIX=1 sets it), or"
                " DDPFIX_UNUSED=late, which needs no flag"
            )
        if self.twice:
            self.advice.append(
                f"{modules(collapsed(self.twice, names))} get a gradient more than once in a backward, and DDP"
                ' raises "Expected to mark a variable ready only once": use_reentrant=False'
            )


def of_program(seen: Mapping[str, Any]) -> List[str]:
    """Return the lines on a program, of data as the command has it."""
    lines = [f"ddpfix probe: {seen['end']}"]
    lines += _entry("called past the wrapper", seen["past"])
    lines += _entry("ddpfix said", seen["said"])
    lines += _entry("note", seen["notes"])
    for model in seen["models"]:
        lines += ["", *of_model(model)]
    return lines if seen["models"] else [*lines, "  no training forward of a model was observed"]


def of_model(found: Mapping[str, Any]) -> List[str]:
    """Return the lines on one model, of a result as plain data."""
    passes = f"{found['passes']} {'pass' if found['passes'] == 1 else 'passes'}"
    lines = [
        f"{found['model']}: {found['trainable']} parameters train, {found['frozen']} are frozen;"
        f" {_count(found['steps'], 'step')}, {passes} (forward and backward)"
        + (f", {found['under']}" if found["under"] else "")
    ]
    skips = _alike(found["skips"], "rate")
    checkpointing = _alike(found["checkpointing"], "reentrant")
    kinds = {True: "reentrant", False: "non-reentrant"}
    for title, parts in (
        ("loss", [found["loss"]] if found["loss"] else []),
        ("no gradient, always", _without(found, found["always"])),
        ("no gradient, sometimes", _without(found, list(found["sometimes"]))),
        ("cause", _short(list(dict.fromkeys(found["why"].values())))),
        ("skips layers", [f"{names}: rate {rate:g}" for names, rate in skips]),
        ("checkpointing", [f"{names}: {kinds[reentrant]}" for names, reentrant in checkpointing]),
        ("setting", [found["setting"] or "none"]),
        ("line to paste", [found["line"]] if found["line"] else []),
        ("advice", found["advice"]),
    ):
        lines += _entry(title, parts)
    return lines


def _count(number: int, one: str) -> str:
    return f"{number} {one if number == 1 else one + 's'}"


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
    lines = []
    for layer, parts in grouped(names).items():
        whole = [part if layer == "the model" else f"{layer}.{part}" for part in parts]
        counts = sorted({found["sometimes"].get(name, 0) for name in whole})
        span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        lines.append(f"  {layer}: {short(parts, 4)}{f' in {span} of ' + str(found['passes']) if counts[-1] else ''}")
    return [_count(len(names), "parameter"), *_short(lines)] if names else []


def _short(lines: Sequence[str]) -> List[str]:
    return [*lines[:_MOST], *([f"and {len(lines) - _MOST} more"] if len(lines) > _MOST else [])]


def _alike(entries: Sequence[Mapping[str, Any]], key: str) -> List[Any]:
    """Return the names and the class of entries that are alike, with the value of ``key`` that they have."""
    groups: Dict[Any, List[str]] = {}
    for entry in entries:
        groups.setdefault((entry["kind"], entry[key]), []).append(entry["name"] or "the model")
    return [(f"{short(names, 4)} ({kind})", value) for (kind, value), names in groups.items()]
