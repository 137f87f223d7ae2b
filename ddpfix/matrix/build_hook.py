"""Puts the compiled matrix into the wheel (hatchling calls this; it is not shipped)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Dict

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledMatrix(BuildHookInterface):  # type: ignore[type-arg, misc, unused-ignore]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: Dict[str, Any]) -> None:
        # An editable install reads the YAML that is being edited.
        if self.target_name != "wheel" or version == "editable":
            return
        root = Path(self.root)
        sys.path.insert(0, str(root))
        try:
            from ddpfix.matrix import compiled, loader
        finally:
            sys.path.remove(str(root))
        yaml = root / "compat_matrix.yaml"
        folder = Path(tempfile.mkdtemp(prefix="ddpfix-build-"))
        path = folder / compiled.NAME
        path.write_text(compiled.dump(loader.load(yaml), yaml.read_bytes()), encoding="utf-8")
        build_data["force_include"][str(path)] = f"ddpfix/{compiled.NAME}"
