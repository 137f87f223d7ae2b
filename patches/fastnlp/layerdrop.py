"""LayerDrop of fastNLP's own BART and CPT (1.0.x): every rank skips the same layers, or none does.

They are those of transformers 4.11 and draw from Python's global generator, which rich consumes on rank 0 when fastNLP
logs: not even a common seed keeps ranks together. What draws, and how, is read from the code, as for transformers.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddpfix.layerdrop import code_copy, everywhere
from ddpfix.patching.site import Site

_TRAITS = code_copy.Traits(skipped_output=(None, None))
_share, _silence = everywhere.sharing(_TRAITS), everywhere.silencing(_TRAITS)


def sync(site: Site, module: ModuleType, owner: Any) -> bool:
    """Rank-synchronous decisions in the training forwards of wrapped models."""
    return everywhere.cover_all(site, module, owner, _share)


def off(site: Site, module: ModuleType, owner: Any) -> bool:
    """No layer is skipped, whatever rate a config or a module holds."""
    return everywhere.cover_all(site, module, owner, _silence)
