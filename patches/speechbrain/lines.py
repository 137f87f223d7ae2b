"""SpeechBrain's line for ``find_unused_parameters``: an option of the recipe's command line."""

from __future__ import annotations

from ..common.lines import Lines

_FLAG = "--find_unused_parameters"
LINES = (Lines("SpeechBrain", ("speechbrain.",), find=_FLAG, do_not_find=f"{_FLAG}=False"),)
