"""ESPnet's option for DDP."""

from __future__ import annotations

from ..common.lines import Lines

LINES = (Lines("ESPnet", ("espnet2.",), find="--unused_parameters true", do_not_find="--unused_parameters false"),)
