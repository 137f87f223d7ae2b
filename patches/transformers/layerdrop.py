"""LayerDrop (Fan et al., arXiv 1909.11556): every rank skips the same layers, or none does.

All families draw one number a layer in their own forward. Which class draws, where its rate is, and which generator
it uses is read from the code of the installed release, so a family that appears later is covered as well.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddpfix.layerdrop import code_copy, everywhere
from ddpfix.patching.site import Site

# From 4.46 on all layers of a model under FSDP run, because ranks might disagree; under ZeRO 3 they always have.
FSDP_CHECK, ZERO3_CHECK = "is_fsdp_managed_module", "is_deepspeed_zero3_enabled"
# Up to 4.36 a skipped layer leaves ``(None, None)``, and WavLM with ``output_attentions`` asks for a third entry.
TRAITS = code_copy.Traits(checks=(FSDP_CHECK, ZERO3_CHECK), skipped_output=(None, None))
_share = everywhere.sharing(TRAITS)


def put(site: Site, module: ModuleType, owner: Any) -> None:
    """Rank-synchronous decisions in the training forwards of wrapped models; or no layer is skipped."""
    everywhere.in_module(site, module, _share)


def put_at_wrap(site: Site, module: ModuleType, owner: Any) -> None:
    """The same for classes that no module of the toolkit defines: they are found when a model is wrapped."""
    everywhere.in_models(site, _share)
