"""LayerDrop of SpeechBrain's own encoders (Fan et al., arXiv 1909.11556): all ranks skip the same layers, or none does.

The Transformer encoder of 0.5.14 to 1.0.1 draws from a numpy generator of its own that no seed reaches, so ranks never
agree. From 1.0.2 on Transformer, Conformer and Branchformer draw one vector a forward from torch's global generator,
BEATs (1.0.3) one number a layer from numpy's. What comes from transformers is covered by ``transformers.layerdrop``.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddpfix.layerdrop import code_copy, everywhere
from ddpfix.patching.site import Site

_share = everywhere.sharing(code_copy.Traits())


def put(site: Site, module: ModuleType, owner: Any) -> None:
    """Rank-synchronous decisions in the training forwards of wrapped models; or no layer is skipped."""
    everywhere.put(site, owner, _share)
