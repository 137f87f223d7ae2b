"""LayerDrop (Fan et al., arXiv 1909.11556) and stochastic depth (Huang et al., 1603.09382): all ranks skip the same.

Which class draws, where its rate is, and which generator it uses is read from the code of the installed release
(``ddpfix.layerdrop``). What is particular to a toolkit:

============  =========================================  =================================================
toolkit       who draws                                  put in place
============  =========================================  =================================================
transformers  families, one number a layer               by ``in_modules``; models of a user's by ``at_wrap``
fastNLP 1.0   BART and CPT, as transformers 4.11         the same
FunASR        a layer for itself, ``MultiSequential``    by ``put``; other layers by ``at_wrap``
ESPnet        the same; from 202506 on e_branchformer    by ``put``
WeNet         a layer for itself, lists from 3.1.0 on    by ``wenet``; layers that scale by ``unscaled``
SpeechBrain   encoders, one vector or number a forward   by ``put``
torchaudio    ``Transformer``, one number a layer        by ``put``
s3prl         copies of fairseq's encoders and WavLM's   by ``put``
any other     found when a model is wrapped              by ``in_any_model``, after those above
============  =========================================  =================================================
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from ddpfix.layerdrop import cover, drawing_classes, everywhere
from ddpfix.patching.site import Site

# From 4.46 on all layers of a model under FSDP run, because ranks might disagree; under ZeRO 3 they always have.
FSDP_CHECK, ZERO3_CHECK = "is_fsdp_managed_module", "is_deepspeed_zero3_enabled"
# Of WeNet's layers, which scale their output up while they are skipped.
_SCALING = "stochastic_depth_rate"
_transformers = functools.partial(everywhere.share, checks=(FSDP_CHECK, ZERO3_CHECK))


def put(site: Site, module: ModuleType, owner: Any) -> None:
    """Rank-synchronous decisions in the training forwards of wrapped models; or no layer is skipped."""
    everywhere.put(site, owner, everywhere.share)


def in_modules(site: Site, module: ModuleType, owner: Any) -> None:
    """The same for all classes of a module."""
    everywhere.in_module(site, module, _transformers)


def at_wrap(site: Site, module: ModuleType, owner: Any) -> None:
    """The same for classes that no module of the toolkit defines: they are found when a model is wrapped."""
    everywhere.in_models(site, _transformers)


def in_any_model(site: Site, module: ModuleType, owner: Any) -> None:
    """The same in models of any origin; a toolkit's whose own fix is switched off stay."""
    everywhere.in_models(site, everywhere.unless_switched_off(site, everywhere.share))


def wenet(site: Site, module: ModuleType, owner: Any) -> None:
    """The same for WeNet's, all of which draw from torch's global CPU generator."""
    put(site, module, owner)
    at_wrap(site, module, owner)
    unscaled(site, module, owner)


def unscaled(site: Site, module: ModuleType, owner: Any) -> None:
    """Have layers of WeNet 3.1.0 and later, which their list skips, run as at rate 0 where none is skipped."""
    forward = vars(owner).get("forward")
    scales = forward is not None and _SCALING in forward.__code__.co_names
    if everywhere.is_off(site) and scales and drawing_classes.drawing_methods(owner)[:1] != ("forward",):
        cover.never_skip(site, owner, "forward", (_SCALING,))
