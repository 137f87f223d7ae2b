"""fastNLP's keywords for DDP: of the trainer itself in 0.7, below ``torch_kwargs`` from 1.0 on."""

from __future__ import annotations

from ..common.lines import Lines, release

_NEW = release("fastNLP") >= (1, 0)
_TRAINER = "Trainer(..., torch_kwargs={'ddp_kwargs': {'find_unused_parameters': %s}})"
_LINE = _TRAINER if _NEW else "DistTrainer(..., find_unused_parameters=%s)"
LINES = (
    Lines(
        "fastNLP", ("fastNLP.",), find=_LINE % True, do_not_find=_LINE % False, not_static=_LINE % True if _NEW else ""
    ),
)
