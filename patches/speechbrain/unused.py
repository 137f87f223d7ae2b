"""``find_unused_parameters`` of SpeechBrain's Brain (speechbrain issue 2340).

The advice of that thread, ``--find_unused_parameters=True``, is refused by every release that has the flag, and the
Brain always hands its own False to DDP where nobody set it. So the user's value is noted, and passed on while DDP is
built; where he set none, ``torch.flag`` decides by the model.
"""

from __future__ import annotations

import functools
import weakref
from types import ModuleType
from typing import Any, MutableMapping, Optional

from ddpfix.models import wrap_hooks
from ddpfix.patching.site import Site

from . import options, spec_augment

FLAG = "find_unused_parameters"
# By Brain; None where its user has set none.
UserValues = MutableMapping[Any, Optional[bool]]


def note_user_value(site: Site, module: ModuleType, owner: Any) -> None:
    """Record the user's value when a Brain is made, and pass it on when it wraps its modules."""
    values: UserValues = weakref.WeakKeyDictionary()
    site.wrap(owner, "__init__", functools.partial(_made, values))
    site.wrap(owner, "_wrap_distributed", functools.partial(_wrapped, values))
    spec_augment.needs_flag(site)


def _made(values: UserValues, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
    given = dict(zip(("modules", "opt_class", "hparams", "run_opts"), args), **kwargs)
    known, value = options.user_value(given.get("run_opts"), given.get("hparams"), FLAG)
    values[instance] = bool(value) if known else None
    wrapped(*args, **kwargs)


def _wrapped(values: UserValues, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    # Code of the user's own may have set the attribute since.
    user_value = True if getattr(instance, FLAG, False) else values.get(instance)
    with wrap_hooks.user_chose(user_value):
        return wrapped(*args, **kwargs)
