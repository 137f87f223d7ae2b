"""Steps of DeepSpeed's engine: all ranks skip the same layers.

ZeRO 1 and 2 send the gradients that a backward has computed, in the order in which it did. Ranks that skip different
layers send different ones: gloo ends the job, NCCL waits or adds up what does not belong together. ZeRO 0 sends a zero
for each gradient that is missing, so ranks train alike there in any case.

ZeRO 3 cannot skip a layer, also where all ranks skip the same: it keeps the gradients of all parameters in one buffer,
into which a backward copies those that it has computed, so a layer that does not run keeps the gradient of the step
before, and the optimizer uses it (seen with DeepSpeed 0.19.8). A step that has left out a layer is ended with an error.
Encoders that ask for ZeRO 3 run all layers (transformers), and go on as they are.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Dict, Optional, Tuple

from torch import distributed

from ddpfix import log
from ddpfix.layerdrop import cover, training
from ddpfix.patching.site import Site

from ..agreement import root_step
from ..internals import process_groups

# The stage that keeps parameters in parts.
_PARTS = 3


def steps(site: Site, module: ModuleType, owner: Any) -> None:
    """Put on the forward of the engine."""

    def find(engine: Any) -> Optional[training.Replica]:
        # The engine passes train() and eval() on and keeps its own mode.
        return None if root_step.is_inner(engine.module) else training.replica_of(engine)

    root_step.put(site, owner, find, _refuse_skips)


def made(site: Site, module: ModuleType, owner: Any) -> None:
    """Put on the constructor of the engine, in which all ranks meet, as they need not in a forward."""
    site.wrap(owner, "__init__", functools.partial(_made, site))


def _made(site: Site, wrapped: Any, engine: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
    wrapped(*args, **kwargs)
    if not distributed.is_initialized():
        # DeepSpeed has backends of its own, and what ranks tell each other goes through torch's store.
        return
    if getattr(engine, "mpu", None) is None:
        root_step.agreed(site, engine, engine.module, process_groups.members_of(None), waits=False)
    elif cover.active(engine.module):
        log.warning(
            "LayerDrop stays as shipped, and ranks may skip different layers: DeepSpeed was given an mpu, so ddpfix"
            " does not know which ranks train one model. DDPFIX_LAYERDROP=off trains without LayerDrop."
        )


def _refuse_skips(engine: Any, step: training.Step) -> None:
    """Raise on all ranks alike where a step under ZeRO 3 has left out a layer."""
    if step.skipped and engine.zero_optimization_stage() >= _PARTS:
        skip = step.skipped[0]
        raise RuntimeError(
            f"ddpfix: LayerDrop skipped layer {skip.layer} of {skip.module or 'the model'}. Under ZeRO 3 such a layer"
            " keeps the gradient of an earlier step, and the optimizer would use it.\n"
            "Set DDPFIX_LAYERDROP=off (or the rate to 0), or train with ZeRO 1 or 2, which can skip layers."
        )
