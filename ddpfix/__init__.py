"""ddpfix applies the known fixes for multi-GPU fine-tuning failures to the installed toolkits.

Importing this package does nothing and costs nothing: each name below is imported when it is first used.
``import ddpfix.auto`` switches the fixes on; ``ddpfix.activate()`` does so with arguments.
"""

from __future__ import annotations

__version__ = "1.0.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ddpfix.engine import activate as activate
    from ddpfix.engine import deactivate as deactivate
    from ddpfix.engine import report as report
    from ddpfix.exchange.rendezvous import AgreementError as AgreementError
    from ddpfix.layerdrop.training import skipped_layers as skipped_layers
    from ddpfix.matrix.model import MatrixError as MatrixError
    from ddpfix.probing.alone import probe as probe
    from ddpfix.settings.reading import SettingsError as SettingsError

_MODULES = {
    "activate": "engine",
    "deactivate": "engine",
    "report": "engine",
    "AgreementError": "exchange.rendezvous",
    "MatrixError": "matrix.model",
    "SettingsError": "settings.reading",
    "probe": "probing.alone",
    "skipped_layers": "layerdrop.training",
}
# Removed names, which ddpfix/settings/gone.py answers: its table is not read for each module imported from here.
_GONE: tuple[str, ...] = ("traffic",)
__all__ = [
    "AgreementError",
    "MatrixError",
    "SettingsError",
    "activate",
    "deactivate",
    "probe",
    "report",
    "skipped_layers",
]


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if name in _GONE:
        from ddpfix.settings.gone import answer

        raise AttributeError(answer(f"ddpfix.{name}"))
    if module is None:
        raise AttributeError(f"module 'ddpfix' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("ddpfix." + module), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
