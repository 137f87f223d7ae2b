"""The setting that follows from what was seen.

DDP waits for the gradient of each parameter. With ``find_unused_parameters=True`` it looks for parameters that are not
behind the forward's output; it does not find those behind an output that the loss leaves out, and takes those behind a
reentrant checkpoint for unused though they get a gradient.
"""

from __future__ import annotations

from typing import List, Sequence

from ddpfix.models import parameter_names
from ddpfix.probing.result import Result
from ddpfix.ranks.groups.work import LEAVE_NO_SYNC

FLAG = "find_unused_parameters=True"
_LATE = "DDPFIX=1, which trains without the flag, with the same result"


def advise(found: Result, skipping: List[str], names: Sequence[str]) -> None:
    """Fill ``setting``, ``unused`` and ``advice``; ``skipping`` says in words what skips layers and trains."""
    found.advice.clear()
    found.setting, found.unused = "", "auto"
    flagged = skipping + found.reasons
    if flagged:
        _needs_flag(found, flagged, names)
    elif found.sometimes:
        found.setting = FLAG
        found.advice.append(f"{FLAG}, because not every step uses the same parameters (which rules out static_graph)")
        found.advice.append(f"or {_LATE}")
    elif found.always:
        _same_in_each_step(found, names)
    elif not found.unaveraged:
        found.advice.append("nothing is needed: every trainable parameter got a gradient in every pass")
    _behind_outputs(found, names)
    _recomputed(found, names)
    if found.unaveraged:
        found.advice.append(
            f"every optimizer step used only gradients of forwards under no_sync ({found.unaveraged}). DDP does not"
            f" average these, and replicas diverge unless the program does. {LEAVE_NO_SYNC}"
        )


def _needs_flag(found: Result, reasons: List[str], names: Sequence[str]) -> None:
    found.setting = FLAG
    found.advice.append(f"{FLAG}, which DDPFIX=1 sets: {'; '.join(reasons)}")
    # A layer that was skipped in each of a few steps runs in a later one.
    above = tuple(f"{skip.name}." if skip.name else "" for skip in found.skips)
    rest = [name for name in found.always if name not in found.outside and not name.startswith(above)]
    if rest:
        found.advice.append(
            f"freeze {parameter_names.in_short(rest, names)} (requires_grad_(False)) if they should not train: no step"
            " trained them"
        )


def _same_in_each_step(found: Result, names: Sequence[str]) -> None:
    rest = [name for name in found.always if name not in found.outside]
    if rest:
        found.setting = FLAG
        found.advice.append(
            f"freeze {parameter_names.in_short(rest, names)} (requires_grad_(False)) if they should not train: DDP"
            " then does not wait for them"
        )
        found.advice.append(f"or {FLAG}, if later steps use them")
        found.advice.append(f"or {_LATE}")


def _behind_outputs(found: Result, names: Sequence[str]) -> None:
    if not found.outside:
        return
    found.unused = "late"
    found.advice.append(
        f"{parameter_names.in_short(found.outside, names)}: behind an output that is not part of the loss, where"
        f" {FLAG} does not help. Return only what the loss needs, or add 0.0 * output.sum() to the loss;"
        " or DDPFIX=1 DDPFIX_UNUSED=late"
    )


def _recomputed(found: Result, names: Sequence[str]) -> None:
    if found.setting == FLAG and found.hidden:
        found.advice.append(
            "reentrant checkpointing fails together with the flag: use_reentrant=False (DDPFIX=1 sets it), or"
            " DDPFIX_UNUSED=late, which needs no flag"
        )
    if found.twice:
        found.advice.append(
            f"{parameter_names.in_short(found.twice, names)} get a gradient more than once in a backward, and DDP"
            ' raises "Expected to mark a variable ready only once": use_reentrant=False'
        )
