"""LayerDrop of torchaudio's wav2vec 2.0, HuBERT and WavLM (arXiv 1909.11556): all ranks skip the same layers.

One class, ``Transformer``, has the layers of all three, and draws one number a layer from torch's global generator.
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
