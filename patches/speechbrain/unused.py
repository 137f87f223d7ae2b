"""``find_unused_parameters`` of SpeechBrain's Brain (speechbrain issue 2340).

The advice of that thread, ``--find_unused_parameters=True``, is refused by every release that has the flag, and the
Brain always hands its own False to DDP where nobody set it. So the user's value is noted, and passed on while DDP is
built; where he set none, ``torch.flag`` and ``torch.finalize`` decide by the model.
"""

from __future__ import annotations

import weakref
from types import ModuleType
from typing import Any, MutableMapping, Optional

from ddpfix.models import wrap_hooks
from ddpfix.patching.site import Site

from . import options

FLAG = "find_unused_parameters"


def note_user_value(site: Site, module: ModuleType, owner: Any) -> None:
    """Record the user's value when a Brain is made, and pass it on when it wraps its modules."""
    # By Brain; None where its user has set none.
    values: MutableMapping[Any, Optional[bool]] = weakref.WeakKeyDictionary()

    def made(wrapped: Any, brain: Any, args: Any, kwargs: Any) -> None:
        given = dict(zip(("modules", "opt_class", "hparams", "run_opts"), args), **kwargs)
        known, value = options.user_value(given.get("run_opts"), given.get("hparams"), FLAG)
        values[brain] = bool(value) if known else None
        wrapped(*args, **kwargs)

    def wrap_distributed(wrapped: Any, brain: Any, args: Any, kwargs: Any) -> Any:
        # Code of the user's own may have set the attribute since.
        with wrap_hooks.user_chose(True if getattr(brain, FLAG, False) else values.get(brain)):
            return wrapped(*args, **kwargs)

    site.wrap(owner, "__init__", made)
    site.wrap(owner, "_wrap_distributed", wrap_distributed)
