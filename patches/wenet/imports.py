"""Imports of WeNet's that newer releases of torch and torchaudio broke, where one harmless name mends them.

Each name is put in place when the module that asks for it is about to be executed, and only where it is missing.
"""

from __future__ import annotations

import importlib
import typing
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

from ddpfix import log
from ddpfix.patching.site import PatchError, Site


def typing_names(site: Site, module: ModuleType, owner: Any) -> None:
    """``Union`` and ``Optional`` in torch.nn.modules.conv, which used to import them from typing for itself."""
    home = importlib.import_module("torch.nn.modules.conv")
    missing = [name for name in ("Union", "Optional") if not hasattr(home, name)]
    for name in missing:
        _put(site, home, name, getattr(typing, name))


def sox_buffer(site: Site, module: ModuleType, owner: Any) -> None:
    """``torchaudio.utils.sox_utils.set_buffer_size``: a torchaudio without sox has no buffer to be sized."""
    try:
        home = importlib.import_module("torchaudio.utils")
    except ImportError as error:
        raise PatchError(f"torchaudio cannot be imported ({error})") from None
    if not hasattr(home, "sox_utils"):
        _put(site, home, "sox_utils", SimpleNamespace(set_buffer_size=_nothing_to_set))


def _nothing_to_set(buffer_size: int) -> None:
    log.debug(f"torchaudio has no sox any more, and no buffer for it: {buffer_size} is not used")


def _put(site: Site, home: ModuleType, name: str, value: Any) -> None:
    setattr(home, name, value)
    site.at_undo(partial(_take, home, name, value))


def _take(home: ModuleType, name: str, value: Any) -> None:
    if vars(home).get(name) is value:
        delattr(home, name)
