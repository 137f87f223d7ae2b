"""Warns of LayerDrop rates that were changed in a config that is not read, when the model is wrapped.

bart-like families copy the rate from the config when they are built; an encoder inside a composite model may hold a
config of its own. In both cases a later ``model.config.layerdrop = 0`` changes nothing.
"""

from __future__ import annotations

import dis
from types import ModuleType
from typing import Any, Dict, Iterator, List, Tuple

from ddpfix import log
from ddpfix.layerdrop import cover
from ddpfix.patching.site import Site
from ddpfix.ranks import wrap_hooks


def rates(site: Site, module: ModuleType, owner: Any) -> None:
    """Compare the rates in force with the rates in the configs, when a model is wrapped."""
    wrap_hooks.before_wrap(site, _report)


def _report(model: Any) -> None:
    for name, setting, rate, effective in differences(model):
        log.warning(
            f"LayerDrop: {setting}={rate:g} in the config has no effect, {name or 'the model'} uses {effective:g}. The"
            f" value that counts is the module's own: model.get_submodule({name!r}).{_path(model, name)} = {rate:g}"
        )


def _path(model: Any, name: str) -> str:
    module = model.get_submodule(name)
    return ".".join(_covered(module).path)


def _covered(module: Any) -> cover.Covered:
    return next(cover.COVERED[level] for level in type(module).__mro__ if level in cover.COVERED)


def differences(model: Any) -> List[Tuple[str, str, float, float]]:
    """(module name, setting in the config, its value, the rate in force) wherever the two differ."""
    modules: Dict[str, Any] = dict(model.named_modules())
    different: List[Tuple[str, str, float, float]] = []
    for name, module in modules.items():
        if not any(level in cover.COVERED for level in type(module).__mro__):
            continue
        effective = cover.rate_of(module)
        for setting, rate in _config_rates(modules, name, module):
            if rate != effective:
                different.append((name, setting, rate, effective))
                break
    return different


def _config_rates(modules: Dict[str, Any], name: str, module: Any) -> Iterator[Tuple[str, float]]:
    """The rates for a module in the configs above it, the outermost first."""
    settings = _settings(module)
    parts = name.split(".") if name else []
    for length in range(len(parts) + 1):
        above = modules.get(".".join(parts[:length]))
        config = getattr(above, "config", None)
        for setting in settings:
            rate = getattr(config, setting, None)
            if isinstance(rate, (int, float)):
                yield setting, float(rate)


def _settings(module: Any) -> List[str]:
    """The names under which a class reads its rate from a config: in its forward, or in its constructor."""
    path = _covered(module).path
    if path[0] == "config":
        return [path[1]]
    instructions = dis.get_instructions(cover.innermost(type(module).__init__))
    names = [i.argval for i in instructions if i.opname in ("LOAD_ATTR", "LOAD_METHOD")]
    return [name for name in dict.fromkeys(names) if isinstance(name, str) and "layerdrop" in name]
