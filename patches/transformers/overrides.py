"""A LayerDrop rate that is set on a config after construction takes effect when the model is wrapped.

bart-like families copy the rate from the config when they are built; an encoder inside a composite model may hold a
config of its own. Unpatched, a later ``model.config.layerdrop = 0`` changes nothing in both cases. What was set last
counts, on the config or on the module. A difference that nobody has set is only told.
"""

from __future__ import annotations

import dis
import functools
import weakref
from types import ModuleType
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ddpfix import log
from ddpfix.layerdrop import cover, drawing_classes
from ddpfix.layerdrop.code_copy import innermost
from ddpfix.models import internals, wrap_hooks
from ddpfix.models.identity import ByIdentity
from ddpfix.patching.site import PatchError, Site


def rates(site: Site, module: ModuleType, owner: Any) -> None:
    """Apply the rates that were set on configs, when a model is wrapped; then tell where the two still differ."""
    wrap_hooks.before_wrap(site, site.keep(_Rates).apply)
    wrap_hooks.before_wrap(site, _report)


def models(site: Site, module: ModuleType, owner: Any) -> None:
    """Know the models that are alive, and notice the rates that are set on their configs from then on."""
    known = site.keep(_Rates)
    site.wrap(owner, "__init__", functools.partial(known.made, site))
    site.at_undo(known.forget)


class _Written(NamedTuple):
    """A rate that was set on a config above a module that does not read it there.

    Attributes:
        attribute: the module's own rate, or "" where it reads a config of its own.
        kept: the object that is the module's own rate since then: another one was set later.
    """

    rate: float
    attribute: str
    kept: Optional[float]


class _Rates:
    """The models that are alive, and the rates that were set on configs above their modules."""

    def __init__(self) -> None:
        self._models: ByIdentity[weakref.ref[Any]] = ByIdentity()
        self._written: ByIdentity[_Written] = ByIdentity()

    def made(self, site: Site, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
        """Around the constructor of models."""
        wrapped(*args, **kwargs)
        self._models[instance] = weakref.ref(instance)
        # From transformers 5 on each class of configs has a method of its own, which keeps the one of its base class.
        kind = type(vars(instance).get("config"))
        level = next(level for level in kind.__mro__ if "__setattr__" in vars(level))
        if level is not object and not any(record.owner is level for record in site.records):
            try:
                site.wrap_hot(level, "__setattr__", self._noticing)
            except PatchError as error:
                log.warning(f"LayerDrop: ddpfix cannot see a rate that is set on a {kind.__name__} later: {error}")

    def forget(self) -> None:
        """Know no model any more (undo)."""
        self._models.clear()
        self._written.clear()

    def _noticing(self, original: Callable[..., None]) -> Callable[..., None]:
        def __setattr__(config: Any, key: Any, value: Any) -> None:
            original(config, key, value)
            if "layerdrop" in key and isinstance(value, (int, float)):
                for holder in self._holders(config):
                    self._note(holder, key, float(value))

        return __setattr__

    def _holders(self, config: Any) -> List[Any]:
        """Return the modules that hold a config, in all models that are alive."""
        models = [model for model in [known() for known in self._models.values()] if model is not None]
        modules = {id(part): part for model in models for _, part in internals.named_modules(model)}
        return [module for module in modules.values() if vars(module).get("config") is config]

    def _note(self, holder: Any, setting: str, rate: float) -> None:
        """Note a rate that was set on the config of a module, for each one in it that has another source."""
        for module in holder.modules():
            path = _path_in(type(module))
            if len(path) == 1 and setting in _settings(module):
                # An object of its own, which shows later whether it was replaced.
                kept = float(getattr(module, path[0])) + 0.0
                setattr(module, path[0], kept)
                self._written[module] = _Written(rate, path[0], kept)
            elif path == ("config", setting):
                if module.config is holder.config:
                    self._written.pop(module)
                else:
                    self._written[module] = _Written(rate, "", None)

    def apply(self, model: Any) -> None:
        """Set the rates on the modules of a model that is about to be wrapped."""
        for name, module in internals.named_modules(model):
            written = self._written.pop(module)
            if written is None:
                continue
            owner, attribute = (
                (module, written.attribute) if written.attribute else (module.config, _path_in(type(module))[1])
            )
            before = getattr(owner, attribute)
            if before != written.rate and (not written.attribute or before is written.kept):
                setattr(owner, attribute, written.rate)
                log.setting(f"{name or 'the model'}: LayerDrop", written.rate, written.rate, "set on the config")
                log.info(f"LayerDrop: {name or 'the model'} takes the rate {written.rate:g} from its config")


def _path_in(owner: type) -> Tuple[str, ...]:
    """Return the path of the rate of a class; empty if it does not draw for layers."""
    for level in owner.__mro__:
        if level in cover.COVERED:
            return cover.COVERED[level].path
        if drawing_classes.drawing_methods(level):
            return next(iter(drawing_classes.rate_paths(level)), ())
    return ()


def _report(model: Any) -> None:
    for name, setting, rate, effective in differences(model):
        path = ".".join(_covered_path(model.get_submodule(name)))
        log.setting(f"{name or type(model).__name__}: {setting}", rate, effective, "the config is not read again")
        log.warning(
            f"LayerDrop: {setting}={rate:g} in the config has no effect, {name or 'the model'} uses {effective:g}. Set"
            f" the module's own value: model.get_submodule({name!r}).{path} = {rate:g}"
        )


def _covered_path(module: Any) -> Tuple[str, ...]:
    """Return the path of the rate of a module that may skip layers; empty for others."""
    covered = next((cover.COVERED[level] for level in type(module).__mro__ if level in cover.COVERED), None)
    # Under DDPFIX_LAYERDROP=off the user has asked for the 0.
    return () if covered is None or covered.never else covered.path


def differences(model: Any) -> List[Tuple[str, str, float, float]]:
    """(module name, setting in the config, its value, the rate in force) wherever the two differ."""
    modules: Dict[str, Any] = dict(internals.named_modules(model))
    different: List[Tuple[str, str, float, float]] = []
    for name, module in modules.items():
        if not _covered_path(module):
            continue
        effective, parts = cover.rate_of(module), name.split(".") if name else []
        # Of the configs above the module, the outermost counts.
        above = [modules.get(".".join(parts[:length])) for length in range(len(parts) + 1)]
        rates = [
            (each, getattr(getattr(part, "config", None), each, None)) for part in above for each in _settings(module)
        ]
        found = [(each, float(rate)) for each, rate in rates if isinstance(rate, (int, float)) and rate != effective]
        different += [(name, setting, rate, effective) for setting, rate in found[:1]]
    return different


def _settings(module: Any) -> List[str]:
    """Return the names under which a class reads its rate from a config: in its forward, or in its constructor."""
    path = _path_in(type(module))
    if not path or path[0] == "config":
        return list(path[1:])
    instructions = dis.get_instructions(innermost(type(module).__init__))
    names = [i.argval for i in instructions if i.opname in ("LOAD_ATTR", "LOAD_METHOD")]
    return [name for name in dict.fromkeys(names) if isinstance(name, str) and "layerdrop" in name]
