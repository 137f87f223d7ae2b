"""The arguments of Trainer and accelerate for DDP."""

from __future__ import annotations

import sys
from typing import Any

from ..common.lines import Lines

_HANDLER = "Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=%s)])"
_ARGUMENT = "TrainingArguments(..., ddp_find_unused_parameters=%s)"
_arguments: Any = getattr(sys.modules.get("transformers.training_args"), "TrainingArguments", None)
# From 4.35 on.
_KEYWORDS = "gradient_checkpointing_kwargs" in getattr(_arguments, "__dataclass_fields__", ())
_NOT_REENTRANT = "TrainingArguments(..., gradient_checkpointing_kwargs={'use_reentrant': False})"
LINES = (
    Lines(
        "Trainer",
        ("transformers.trainer",),
        find=_ARGUMENT % True,
        do_not_find=_ARGUMENT % False,
        not_static=_ARGUMENT % True,
        not_reentrant=_NOT_REENTRANT if _KEYWORDS else "",
        own=True,
    ),
    Lines(
        "accelerate",
        ("accelerate.",),
        find=_HANDLER % True,
        do_not_find=_HANDLER % False,
        not_static=_HANDLER % True,
        own=True,
    ),
)
