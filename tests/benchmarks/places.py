"""Fresh virtual environments to start interpreters in, one of them with ddpfix laid out as its wheel lays it out."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Dict

from tests.activation.support import ROOT, Place, new_place, succeed

BORROWED = ("torch", "transformers", "wrapt", "packaging", "rich")


def bare(folder: Path) -> Place:
    return new_place(folder)


def one_line(folder: Path) -> Place:
    """With the least that a .pth file can do, which is what ours is compared with."""
    place = new_place(folder)
    (place.packages / "ddpfix.pth").write_text("import os\n", encoding="utf-8")
    return place


def ours(folder: Path) -> Place:
    """No wheel is built, since that needs the build backend; nothing else may lie here, since its cost would count."""
    place = new_place(folder)
    package = place.packages / "ddpfix"
    left_out = shutil.ignore_patterns("__pycache__", "patches.py", "*.pth", "compiling")
    shutil.copytree(ROOT / "ddpfix", package, ignore=left_out)
    shutil.copytree(ROOT / "patches", package / "patches", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "ddpfix" / "ddpfix.pth", place.packages)
    # Installers compile what they install, and the first start would do it otherwise.
    succeed([place.python, "-m", "compileall", "-q", package])
    return place


def with_toolkits(folder: Path) -> Place:
    """Ours, with the toolkits of the running interpreter."""
    place = ours(folder)
    homes: Dict[Path, None] = {}
    for name in BORROWED:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            homes[Path(spec.origin).parent.parent] = None
    place.link(*homes)
    return place
