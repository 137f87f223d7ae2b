"""Names that the fixes for fastNLP share."""

from __future__ import annotations

FLAG = "find_unused_parameters"
# The line that hands a setting to DDP in 1.0.x, and the one of 0.7.0.
SPELLING = "torch_kwargs={'ddp_kwargs': {%s}}"
