"""The policy for uneven data that a toolkit follows, and the loaders that a toolkit's own patch manages."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Sequence

from ddpfix import log
from ddpfix.patching.site import Site


class Held:
    """The loaders whose epochs a toolkit's own patch ends together on all ranks: nobody else is to."""

    def __init__(self) -> None:
        self._loaders: weakref.WeakSet[Any] = weakref.WeakSet()

    def hold(self, loader: Any) -> None:
        """Have a toolkit's own patch manage this loader from now on."""
        # One to which no weak reference is possible is none of torch's.
        with contextlib.suppress(TypeError):
            self._loaders.add(loader)

    def is_held(self, loader: Any) -> bool:
        """Return whether a toolkit's own patch manages a loader."""
        return loader in self._loaders


def policy(site: Site, toolkit: str) -> str:
    """Return the value of the setting ``uneven``, or the one of this toolkit that comes nearest to it.

    Args:
        site: the site of the patch, which has the matrix's replacements for values that its toolkit does not have.
        toolkit: the toolkit's name, for the line that says that another value is taken. Nothing is logged where the
            user chose no value.
    """
    wanted: str = site.settings["uneven"]
    taken = site.instead.get(wanted, wanted)
    if taken != wanted and wanted != "auto":
        log.info(f"{toolkit} does not support uneven={wanted}: ddpfix uses uneven={taken}")
    return taken


def line(numbers: Sequence[int], target: int) -> str:
    """Return the line about ranks with different numbers of batches."""
    most, least = max(numbers), min(numbers)
    head = f"ranks have {least} to {most} batches: each trains {target} steps in this epoch"
    if target == least:
        cut = sum(number - target for number in numbers)
        return f"{head}, {cut} batches are left out (DDPFIX_UNEVEN=pad repeats some instead)"
    again = sum(target - number for number in numbers)
    return f"{head}, {again} batches are read again (DDPFIX_UNEVEN=stop ends at the shortest instead)"
