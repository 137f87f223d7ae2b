"""Skips a layer under FSDP as well if all ranks skip it: it does not run, and no rank gathers its parameters.

From 4.46 on, wav2vec2-like encoders run every layer of a model under FSDP, also one that is to be skipped, and its
output counts: ranks that disagree would wait for each other for ever (transformers pull request 33483). LayerDrop then
does nothing. Ranks that follow the schedule cannot disagree, so in their training forwards, and in the recomputations
of these, the question whether a module is under FSDP is answered with no (:mod:`ddpfix.layerdrop.code_copy`).

The question whether DeepSpeed ZeRO-3 is on keeps its answer, and all layers run. ZeRO-3 has the gradients of all
parameters in one buffer, into which a backward copies the ones that it has computed: a layer that does not run keeps
the gradient of the step before, and the optimizer uses it (seen with DeepSpeed 0.19.8). ZeRO-3 also drops its record of
what to prefetch whenever modules run in another order than the last time.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddpfix.layerdrop.shared_skips import EXTENSIONS, Extension
from ddpfix.patching.site import PatchError, Site

from ..common.layerdrop import FSDP_CHECK


def skip(site: Site, module: ModuleType, owner: Any) -> None:
    """Let the copies of forwards that follow the schedule skip; PatchError: transformers no longer has the function."""
    if not callable(getattr(module, FSDP_CHECK, None)):
        raise PatchError(f"{module.__name__} has no {FSDP_CHECK}")
    site.register(EXTENSIONS, site.keep(_Unsharded))


class _Unsharded(Extension):
    def answers(self, check: str) -> bool:
        return check == FSDP_CHECK
