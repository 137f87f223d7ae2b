"""ddpfix applies the known cures for multi-GPU fine-tuning failures to the installed toolkits.

Importing this package does nothing and costs nothing: each name below is fetched when it is asked for.
``import ddpfix.auto`` switches the cures on; ``ddpfix.activate()`` does so with arguments.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ddpfix.engine import activate as activate
    from ddpfix.engine import deactivate as deactivate
    from ddpfix.engine import report as report
    from ddpfix.layerdrop.training import skipped_layers as skipped_layers
    from ddpfix.matrix.model import MatrixError as MatrixError
    from ddpfix.matrix.settings import SettingsError as SettingsError
    from ddpfix.ranks.agreement import AgreementError as AgreementError
    from ddpfix.ranks.traffic import traffic as traffic

_HOMES = {
    "activate": "engine",
    "deactivate": "engine",
    "report": "engine",
    "AgreementError": "ranks.agreement",
    "MatrixError": "matrix.model",
    "SettingsError": "matrix.settings",
    "skipped_layers": "layerdrop.training",
    "traffic": "ranks.traffic",
}
__all__ = [
    "AgreementError",
    "MatrixError",
    "SettingsError",
    "activate",
    "deactivate",
    "report",
    "skipped_layers",
    "traffic",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ddpfix' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("ddpfix." + home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
