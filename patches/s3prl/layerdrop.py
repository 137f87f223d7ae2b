"""LayerDrop of s3prl's upstreams (Fan et al., arXiv 1909.11556): all ranks skip the same layers, or none does.

They are copies of fairseq's and of WavLM's encoders: one number a layer from numpy's global generator, in a method
``extract_features`` that ``forward`` calls. Those of transformers' models are transformers' own.
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
