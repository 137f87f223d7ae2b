"""Layers that a patch leaves out by itself, because the toolkit computes all of them and drops what some gave."""

from __future__ import annotations

from typing import Any, Callable

from ddpfix.layerdrop import cover
from ddpfix.patching.site import Site


class ByPatch(cover.Covered):
    """A method whose layers a patch leaves out by itself (:meth:`Call.drops`), because its code computes all of them.

    Where DDP does not look for unused parameters, a layer that is left out has gradients of zeros.

    Args:
        rate: ``rate(module)`` gives the largest rate of a module.
    """

    def __init__(self, method: str, rate: Callable[[Any], float]) -> None:
        self.method, self.rate = method, rate
        self.helpers, self.path, self.never, self.examined = (), (), False, True
        self.others, self.refused = [], []

    def applies(self, module: Any, has_peers: bool) -> bool:
        return True


def record(site: Site, owner: type, method: str, rate: Callable[[Any], float]) -> None:
    """Record that a patch leaves out layers in a method of a class, so that DDP and all reports know of it."""
    cover.remember(site, owner, [ByPatch(method, rate)])


def needs_flag(module: Any, decided: bool) -> bool:
    """Return whether a module that skips layers leaves parameters without a gradient, for which DDP would wait.

    Args:
        decided: whether the program has decided that DDP looks for no unused parameters.
    """
    covered = (cover.COVERED.get(level) for level in type(module).__mro__)
    return not decided or not any(isinstance(each, ByPatch) for each in covered)
