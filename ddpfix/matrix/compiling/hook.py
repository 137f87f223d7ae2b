"""Compiles the matrix when the package is built. hatchling calls this."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledMatrix(BuildHookInterface):  # type: ignore[type-arg, misc, unused-ignore]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: Dict[str, Any]) -> None:
        # Into the checkout, also by an editable install: a command that is run there reads the one that it finds there.
        sys.path.insert(0, self.root)
        try:
            from ddpfix.matrix.compiling.write import write
        finally:
            sys.path.remove(self.root)
        write(Path(self.root))
