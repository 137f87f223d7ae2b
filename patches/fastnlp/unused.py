"""``find_unused_parameters`` where the user of fastNLP 0.7.0 set nothing ("Expected to have finished reduction").

Up to 0.6.0 fastNLP always gave DDP the flag; 0.7.0 reads it from a keyword, and gives DDP its own default of False.
The user did not choose it, so ``torch.finalize`` trains what leaves parameters out. In 1.0.x DDP gets what he set.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddpfix.models import wrap_hooks
from ddpfix.patching.checks import needs_names
from ddpfix.patching.site import Site

from .overrides import FLAG


def trainer(site: Site, module: ModuleType, owner: Any) -> None:
    """Wrap ``DistTrainer.__init__`` (0.7.0)."""
    needs_names(owner, "__init__", FLAG, "DDP")
    site.wrap(owner, "__init__", _made)


def _made(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    with wrap_hooks.user_chose(kwargs.get(FLAG)):
        return wrapped(*args, **kwargs)
