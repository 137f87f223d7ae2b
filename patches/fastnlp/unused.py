"""``find_unused_parameters=True`` where the user of fastNLP set nothing ("Expected to have finished reduction").

Nothing in fastNLP tells which parameters a step will use, and the reported failure (user code of any kind, parameters
390, 391, 412 to 416) does not either. Up to 0.6.0 fastNLP always gave DDP the flag; 0.7.0 left it out (commit 7ce03a60)
and so does 1.0.x, whose own error message then advises it. So what it was by default, it is again. An explicit value
of the user's stays, and so does a static graph, for which unused parameters are no trouble.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, Dict, Mapping

from torch.nn.parallel import DistributedDataParallel

from ddpfix import log
from ddpfix.patching.checks import needs_names
from ddpfix.patching.site import Site

from .overrides import FLAG, SPELLING

_FAILURE = "'Expected to have finished reduction'"


def add_flag(site: Site, module: ModuleType, owner: Any) -> None:
    """Wrap ``TorchDDPDriver.configure_ddp`` (1.0.x)."""
    # The attribute's name is fastNLP's own slip: it holds the ddp_kwargs.
    needs_names(owner, "configure_ddp", "_fsdp_kwargs", "DistributedDataParallel")
    site.wrap(owner, "configure_ddp", _configured)


def trainer(site: Site, module: ModuleType, owner: Any) -> None:
    """Wrap ``DistTrainer.__init__`` (0.7.0)."""
    needs_names(owner, "__init__", FLAG, "DDP")
    site.wrap(owner, "__init__", _made)


def _configured(wrapped: Any, driver: Any, args: Any, kwargs: Any) -> Any:
    if not isinstance(driver.model, DistributedDataParallel):
        driver._fsdp_kwargs = completed(driver._fsdp_kwargs or {}, SPELLING % f"'{FLAG}': False")
    return wrapped(*args, **kwargs)


def _made(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    bound = inspect.signature(wrapped).bind(*args, **kwargs)
    if isinstance(bound.arguments["model"], DistributedDataParallel):
        if FLAG in kwargs:
            log.warning(
                f"{FLAG}={kwargs[FLAG]} has no effect: the model is wrapped in DDP already. Pass it to that DDP"
            )
        return wrapped(*args, **kwargs)
    return wrapped(*args, **completed(kwargs, f"DistTrainer(..., {FLAG}=False)"))


def completed(given: Mapping[str, Any], without: str) -> Dict[str, Any]:
    """Return a copy of what the user gave, with the flag where he did not set it."""
    result = dict(given)
    if result.get(FLAG) is not None:
        if not result[FLAG]:
            log.info(
                f"{FLAG}=False is your own setting and stays. A step that leaves a parameter out raises {_FAILURE}"
            )
    elif result.get("static_graph"):
        log.info(f"static_graph=True is your own setting and stays; ddpfix does not add {FLAG}")
    else:
        result[FLAG] = True
        log.info(
            f"{FLAG}=True, as in fastNLP up to 0.6.0: without it a step that leaves a parameter out raises {_FAILURE}."
            f"\nIf every step uses all parameters, {without} saves the search."
        )
    return result
