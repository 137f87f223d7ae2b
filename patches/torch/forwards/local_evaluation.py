"""A wrapped model in evaluation needs no other rank, where that was asked for (``DDPFIX_EVALUATION=local``).

DDP broadcasts the first rank's buffers before the first forward after each training step, also where no gradient is
needed: a rank that evaluates alone waits for the others, at the latest after the last step (pytorch issue 54059). After
``model.join()`` every forward communicates.

By default this stays: where all ranks evaluate, each of them has the first rank's buffers, and no rank can know whether
another one evaluates as well.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable

from ddpfix.patching import temporary
from ddpfix.patching.site import Site

from ..internals.wrapper import without_join
from ..pipeline import ddp


def local(site: Site, module: ModuleType, owner: Any) -> None:
    """Put the stage in."""
    ddp.put(site, owner, Local())
    ddp.UNSEEN.append(_forward)
    site.at_undo(lambda: ddp.UNSEEN.remove(_forward))


class Local(ddp.Stage):
    """Holds the place; no model is changed."""

    place = "evaluation"


def _forward(original: Callable[..., Any], wrapper: Any, inputs: Any, kwargs: Any) -> Any:
    if ddp.trains(wrapper) or ddp.of(wrapper) is None:
        return original(wrapper, *inputs, **kwargs)
    # DDP takes this forward for one after which buffers need not be broadcast: the other ranks take the next one for
    # one before which they need to be.
    with temporary.replaced(wrapper, "require_forward_param_sync", False), without_join(wrapper):
        return original(wrapper, *inputs, **kwargs)
