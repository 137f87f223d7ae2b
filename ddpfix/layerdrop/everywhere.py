"""Changes all classes that draw for layers: one of a toolkit, those of a module, or those in a model to be wrapped."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, Callable, Tuple

from ddpfix import log
from ddpfix.layerdrop import comparisons, cover, drawing_classes
from ddpfix.models import wrap_hooks
from ddpfix.patching.site import PatchError, Site
from ddpfix.user_code import full_name, module_of

# change(site, owner, examined): changes one class, whose code was examined or not; raises PatchError, and leaves it as
# it was, where it has another shape than expected.
Change = Callable[[Site, type, bool], Any]


def share(site: Site, owner: type, examined: bool, checks: Tuple[str, ...] = ()) -> None:
    """Have all ranks skip the same layers in training forwards of wrapped models, or none with ``off``."""
    if is_off(site):
        cover.never_skip(site, owner)
    else:
        cover.cover(site, owner, checks, examined)


def is_off(site: Site) -> bool:
    """Return whether no layer is to be skipped, whatever rate a config or a module holds."""
    return site.settings is not None and site.settings["layerdrop"] == "off"


def unless_switched_off(site: Site, change: Change) -> Change:
    """Leave the classes of a toolkit whose own fix its user has switched off (``DDPFIX_<TOOLKIT>_LAYERDROP=0``)."""

    def changed(site_: Site, owner: type, examined: bool) -> Any:
        toolkit = module_of(owner).partition(".")[0].lower()
        left = site.settings is not None and site.settings.switched(f"{toolkit}.layerdrop") == "0"
        return None if left else change(site_, owner, examined)

    return changed


def put(site: Site, owner: type, change: Change) -> None:
    """Change a class whose method draws, once; PatchError where it does not draw."""
    if not drawing_classes.drawing_methods(owner):
        raise PatchError(
            f"{owner.__qualname__} does not draw for layers: none of {', '.join(comparisons.METHODS)} compares a draw"
        )
    if owner not in cover.COVERED:
        change(site, owner, True)


def in_module(site: Site, module: ModuleType, change: Change) -> None:
    """Change the classes of a module that draw."""
    values = list(vars(module).values())
    for owner in [value for value in values if isinstance(value, type) and module_of(value) == module.__name__]:
        if drawing_classes.drawing_methods(owner):
            _put(site, owner, change, None)


def in_models(site: Site, change: Change) -> None:
    """Change the classes that draw in each model that is wrapped from here on: a user's subclasses are among them."""
    wrap_hooks.before_wrap(site, _InModels(site, change))


@dataclass(frozen=True)
class _InModels:
    """Two of the same patch are equal, so that a model is examined once."""

    site: Site
    change: Change

    def __call__(self, model: Any) -> None:
        try:
            classes = drawing_classes.in_model(model)
        except Exception as error:
            # A property of the user's may raise outside of a forward: no reason to end a job that trains without us.
            _say(type(model), f"ddpfix could not search it ({error!r})")
            return
        for owner, module in classes.items():
            _put(self.site, owner, self.change, module)


def _put(site: Site, owner: type, change: Change, module: Any) -> None:
    """Change a class, of which a module is known unless its code was examined."""
    try:
        if owner not in cover.COVERED:
            if module is not None:
                drawing_classes.check(owner, module)
            change(site, owner, module is None)
    except PatchError as error:
        _say(owner, str(error))
        return
    covered = cover.COVERED.get(owner)
    if covered is None or module is None or covered.never:
        return
    for why in covered.refused:
        _say(owner, why)


def _say(owner: type, why: str) -> None:
    line = f"ranks may skip different layers of {full_name(owner)}: {why}"
    if log.first_time(line):
        log.info(line)
