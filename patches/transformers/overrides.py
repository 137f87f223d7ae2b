"""A LayerDrop rate that is set on a config after construction is named where nothing reads it.

bart-like families copy the rate from the config when they are built; an encoder inside a composite model may hold a
config of its own. A later ``model.config.layerdrop = 0`` changes nothing in both cases.
"""

from __future__ import annotations

import dis
from types import ModuleType
from typing import Any, Dict, Iterator, List, Tuple

from ddpfix import log
from ddpfix.layerdrop import cover
from ddpfix.layerdrop.code_copy import innermost
from ddpfix.models import internals, wrap_hooks
from ddpfix.patching.site import Site


def rates(site: Site, module: ModuleType, owner: Any) -> None:
    """When a model is wrapped, name the rates on configs that differ from those in force."""
    wrap_hooks.before_wrap(site, _report)


def _report(model: Any) -> None:
    for name, setting, rate, effective in differences(model):
        path = ".".join(_path(model.get_submodule(name)))
        log.setting(f"{name or type(model).__name__}: {setting}", rate, effective, "the config is not read again")
        log.warning(
            f"LayerDrop: {setting}={rate:g} in the config has no effect, {name or 'the model'} uses {effective:g}. Set"
            f" the module's own value: model.get_submodule({name!r}).{path} = {rate:g}"
        )


def differences(model: Any) -> List[Tuple[str, str, float, float]]:
    """(module name, setting in the config, its value, the rate in force) wherever the two differ."""
    modules: Dict[str, Any] = dict(internals.named_modules(model))
    different: List[Tuple[str, str, float, float]] = []
    for name, module in modules.items():
        # Under DDPFIX_LAYERDROP=off the user has asked for the 0.
        if _path(module):
            effective = cover.rate_of(module)
            found = ((setting, rate) for setting, rate in _config_rates(modules, name) if rate != effective)
            different += [(name, setting, rate, effective) for setting, rate in [*found][:1]]
    return different


def _path(module: Any) -> Tuple[str, ...]:
    """Return the path of the rate of a module that may skip layers; empty for others."""
    covered = next((cover.COVERED[level] for level in type(module).__mro__ if level in cover.COVERED), None)
    return () if covered is None or covered.never else covered.path


def _config_rates(modules: Dict[str, Any], name: str) -> Iterator[Tuple[str, float]]:
    """Yield the rates for a module in the configs above it, the outermost first."""
    settings = _settings(modules[name])
    parts = name.split(".") if name else []
    for length in range(len(parts) + 1):
        config = getattr(modules.get(".".join(parts[:length])), "config", None)
        for setting in settings:
            rate = getattr(config, setting, None)
            if isinstance(rate, (int, float)):
                yield setting, float(rate)


def _settings(module: Any) -> List[str]:
    """Return the names under which a class reads its rate from a config: in its forward, or in its constructor."""
    path = _path(module)
    if path[0] == "config":
        return [path[1]]
    instructions = dis.get_instructions(innermost(type(module).__init__))
    names = [i.argval for i in instructions if i.opname in ("LOAD_ATTR", "LOAD_METHOD")]
    return [name for name in dict.fromkeys(names) if isinstance(name, str) and "layerdrop" in name]
