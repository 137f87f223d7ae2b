"""LayerDrop (Fan et al., arXiv 1909.11556) in models of any origin: every rank skips the same layers, or none does.

Which classes draw for layers is found when a model is wrapped (DDP, FSDP, ``fully_shard``, DeepSpeed's engine). Patches
of toolkits, which know what is particular to their code, have their turn before this one.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddpfix.layerdrop import code_copy, everywhere
from ddpfix.patching.site import Site

_share = everywhere.sharing(code_copy.Traits())


def put(site: Site, module: ModuleType, owner: Any) -> None:
    """Rank-synchronous decisions in the training forwards of wrapped models; or no layer is skipped."""
    everywhere.in_models(site, everywhere.unless_switched_off(site, _share))
