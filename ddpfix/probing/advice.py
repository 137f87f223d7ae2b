"""The setting that follows from what was seen.

DDP waits for the gradient of each parameter. With ``find_unused_parameters=True`` it looks for parameters that are not
behind the forward's output; it does not find those behind an output that the loss leaves out, and takes those behind a
reentrant checkpoint for unused though they get a gradient.
"""

from __future__ import annotations

from typing import Sequence

from ddpfix.probing.result import Result, Skipping
from ddpfix.rules.names import collapsed, modules

FLAG = "find_unused_parameters=True"
_LATE = "or DDPFIX=1, which trains without the flag, with the same result"


def advise(found: Result, names: Sequence[str]) -> None:
    """Fill ``setting``, ``unused`` and ``advice``, by the names of all parameters that train."""
    trains = [skip for skip in found.skips if any(name.startswith(_inside(skip)) for name in names)]
    skipping = [f"{skip.kind} (rate {skip.rate:g}) skips layers at random" for skip in trains]
    reasons = [*dict.fromkeys(skipping), *found.reasons]
    # A layer that was skipped in each of a few steps runs in a later one.
    above = tuple(map(_inside, found.skips)) if reasons else ()
    idle = [name for name in found.always if name not in found.outside and not name.startswith(above)]
    freeze = f"freeze {modules(collapsed(idle, names))} (requires_grad_(False)) if they should not train: "
    if reasons:
        found.advice.append(f"{FLAG}, which DDPFIX=1 sets: {'; '.join(reasons)}")
        found.advice += [f"{freeze}no step trained them"] if idle else []
    elif found.sometimes:
        found.advice += [
            f"{FLAG}, because not every step uses the same parameters (which rules out static_graph)",
            _LATE,
        ]
    elif idle:
        found.advice += [f"{freeze}DDP then does not wait for them", f"or {FLAG}, if later steps use them", _LATE]
    elif not found.always:
        found.advice.append("nothing is needed: every trainable parameter got a gradient in every pass")
    if reasons or found.sometimes or idle:
        found.setting = FLAG
    _except(found, names)


def _inside(skip: Skipping) -> str:
    """Return what the names of the parameters of a module begin with."""
    return f"{skip.name}." if skip.name else ""


def _except(found: Result, names: Sequence[str]) -> None:
    """Add what the flag does not do."""
    if found.outside:
        found.unused = "late"
        found.advice.append(
            f"{modules(collapsed(found.outside, names))}: behind an output that is not part of the loss, where"
            f" {FLAG} does not help. Return only what the loss needs, or add 0.0 * output.sum() to the loss;"
            " or DDPFIX=1 DDPFIX_UNUSED=late"
        )
    if found.setting and found.hidden:
        found.advice.append(
            "reentrant checkpointing fails together with the flag: use_reentrant=False (DDPFIX=1 sets it), or"
            " DDPFIX_UNUSED=late, which needs no flag"
        )
    if found.twice:
        found.advice.append(
            f"{modules(collapsed(found.twice, names))} get a gradient more than once in a backward, and DDP"
            ' raises "Expected to mark a variable ready only once": use_reentrant=False'
        )
