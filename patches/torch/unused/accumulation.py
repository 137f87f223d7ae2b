"""Gradient accumulation before torch 2.4: all micro-batches of a window skip the same layers."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Optional

from ddpfix.patching.site import Site

from ..pipeline import ddp


def hold(site: Site, module: ModuleType, owner: Any) -> None:
    """Before torch 2.4 all micro-batches of an accumulation window skip the same layers.

    There, DDP with ``find_unused_parameters`` averages only what the last micro-batch used: a parameter that an earlier
    one used, under ``no_sync``, keeps the gradient of its own rank, and ranks drift apart without a word (pytorch issue
    69031, mended by pull request 124193). With one decision a window, what is unused at the end was never used in it.
    """
    ddp.put(site, owner, Hold())


class Hold(ddp.Stage):
    place = "accumulation"

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        model.holds = True

    def ended(self, model: ddp.Wrapped) -> None:
        model.holds = False
