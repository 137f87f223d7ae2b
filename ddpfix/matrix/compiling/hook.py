"""Compiles the matrix, and puts links that work everywhere into the metadata. hatchling calls this."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Dict, Match

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

# What a link of the README leads to: not to another page by its address, nor within the page.
_TARGET = re.compile(r"\]\((?!https?://|#)([^)]+)\)")
_PICTURES = (".png", ".svg")


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


class Readme(MetadataHookInterface):  # type: ignore[misc, unused-ignore]
    """The README for the page of an index, which resolves no relative link: they lead to the files of this version."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: Dict[str, Any]) -> None:
        source, version = metadata["urls"]["Source"], metadata["version"]

        def absolute(link: Match[str]) -> str:
            kind = "raw" if link[1].endswith(_PICTURES) else "blob"
            return f"]({source}/{kind}/v{version}/{link[1]})"

        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": _TARGET.sub(absolute, text)}
