"""FunASR's line for ``find_unused_parameters``: an override of its command line."""

from __future__ import annotations

from ..common.lines import Lines

_FLAG = "++train_conf.find_unused_parameters="
LINES = (Lines("FunASR", ("funasr.",), find=f"{_FLAG}true", do_not_find=f"{_FLAG}false"),)
