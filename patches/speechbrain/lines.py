"""SpeechBrain's line for ``find_unused_parameters``: an option of the recipe's command line, from 0.5.9 on."""

from __future__ import annotations

from ..common.lines import Lines, release

_FLAG = "--find_unused_parameters" if release("speechbrain") >= (0, 5, 9) else ""
LINES = (Lines("SpeechBrain", ("speechbrain.",), find=_FLAG, do_not_find=_FLAG and f"{_FLAG}=False"),)
