"""LayerDrop and stochastic depth of ESPnet's encoders and decoders: all ranks skip the same layers, or none does.

A list of layers (``MultiSequential``) draws one vector a forward; a layer of a conformer, transformer or branchformer
draws for itself, and a branchformer's for its attention branch as well; from 202506 on an e_branchformer encoder draws
for its layers. BEATs, AV-HuBERT and HuBERT are found when a model is wrapped, as models of any origin are.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddpfix.layerdrop import everywhere
from ddpfix.patching.site import Site

from ..common import espnet


def put(site: Site, module: ModuleType, owner: Any) -> None:
    """Rank-synchronous decisions in the training forwards of wrapped models; or no layer is skipped."""
    everywhere.put(site, owner, espnet.share)
