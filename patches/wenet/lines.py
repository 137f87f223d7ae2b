"""WeNet's line: DDP looks for unused parameters unless checkpointing is on, which 3.0.0 and later have."""

from __future__ import annotations

from ..common.lines import Lines

_CHECKPOINTING = '--override_config "encoder_conf.gradient_checkpointing false"'
LINES = (Lines("WeNet", ("wenet.",), find=_CHECKPOINTING, not_reentrant=_CHECKPOINTING),)
