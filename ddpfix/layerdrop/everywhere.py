"""Changes all classes that draw for layers: one of a toolkit, those of a module, or those in a model to be wrapped."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable, Iterable

from ddpfix import log
from ddpfix.layerdrop import code_copy, cover
from ddpfix.patching.site import PatchError, Site
from ddpfix.ranks import wrap_hooks

# Changes one class; raises PatchError, and leaves it as it was, where it has another shape than expected.
Change = Callable[[Site, type], Any]


def sharing(traits: code_copy.Traits) -> Change:
    """Has all ranks skip the same layers in the training forwards of wrapped models.

    Args:
        traits: what is particular to the toolkit's code.
    """
    return lambda site, owner: cover.cover(site, owner, cover.shared_call, traits=traits)


def never_skipping(traits: code_copy.Traits) -> Change:
    """Has no layer skipped, whatever rate a config or a module holds; see :func:`sharing`."""
    return lambda site, owner: cover.cover(site, owner, cover.no_call, never=True, traits=traits)


def put(site: Site, owner: type, change: Change) -> None:
    """Change a class whose method draws, once.

    Raises:
        PatchError: it does not draw.
    """
    if cover.drawing_method(owner) is None:
        raise PatchError(f"{owner.__qualname__} {_why_not(owner)}")
    if owner not in cover.COVERED:
        change(site, owner)


def _why_not(owner: type) -> str:
    """Why no method of a class counts as one that draws: what is missing, for a message."""
    rates = ", ".join((*(f"*{rate}*" for rate in code_copy.RATES), *code_copy.RATE_NAMES))
    methods = [name for name in cover.METHODS if name in vars(owner)]
    if not methods:
        return f"draws for no layers: it has none of {', '.join(cover.METHODS)}"
    if not any(code_copy.draws(vars(owner)[name]) for name in methods):
        return f"draws for no layers: {', '.join(methods)} draws no random number"
    return f"draws, and reads no rate with a known name ({rates}): site.register(code_copy.RATE_NAMES, name)"


def in_module(site: Site, module: ModuleType, change: Change) -> None:
    """Change the classes of a module that draw."""
    values = list(vars(module).values())
    _put_all(site, [v for v in values if isinstance(v, type) and v.__module__ == module.__name__], change)


def in_models(site: Site, change: Change) -> None:
    """Change the classes that draw in each model that is wrapped from here on: a user's subclasses are among them."""
    wrap_hooks.before_wrap(site, _InModels(site, change))


class _InModels:
    """Two of the same patch are equal, so that a model is looked at once."""

    def __init__(self, site: Site, change: Change) -> None:
        self.site, self.change = site, change

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _InModels) and (self.site, self.change) == (other.site, other.change)

    def __hash__(self) -> int:
        return hash((self.site, self.change))

    def __call__(self, model: Any) -> None:
        levels = (level for module in model.modules() for level in type(module).__mro__)
        _put_all(self.site, dict.fromkeys(levels), self.change)


def _put_all(site: Site, classes: Iterable[type], change: Change) -> None:
    for owner in classes:
        if owner in cover.COVERED or cover.drawing_method(owner) is None:
            continue
        try:
            change(site, owner)
        except PatchError as error:
            log.warning(f"{owner.__module__}.{owner.__qualname__} skips layers, and ranks may disagree: {error}")
