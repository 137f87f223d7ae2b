"""fastNLP's own advice on unused parameters, also with ``driver='auto'``.

``Trainer.run`` logs "You may need to pass torch_kwargs={'ddp_kwargs': ...}" where the driver was requested by a
name that has "torch" in it. With 'auto', which is the default and means 'torch' for a torch module, it logs nothing.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddpfix.patching import temporary
from ddpfix.patching.checks import needs_names
from ddpfix.patching.site import Site
from ddpfix.user_code import module_of

_HOME = "fastNLP.core.drivers.torch_driver"


def for_all(site: Site, module: ModuleType, owner: Any) -> None:
    """Have ``Trainer.run`` find the driver's real name where 'auto' chose one of torch's."""
    needs_names(owner, "run", "driver_name", "find_unused_parameters")
    site.wrap(owner, "run", _run)


def _run(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    of_torch = any(module_of(level).startswith(_HOME) for level in type(trainer.driver).mro())
    if trainer.driver_name != "auto" or not of_torch:
        return wrapped(*args, **kwargs)
    with temporary.replaced(trainer, "driver_name", "torch"):
        return wrapped(*args, **kwargs)
