"""Writes down how the places of patches look in the releases that are installed: python -m tests.support.looks.

Only releases that the matrix calls tested count. What is known of other releases stays.
"""

from __future__ import annotations

import fnmatch
import importlib
import json
import pkgutil
import sys
from pathlib import Path
from typing import Dict, Iterator, List

from packaging.version import Version

from ddpfix.matrix import detect, loader
from ddpfix.matrix.model import Matrix, Row
from ddpfix.patching import looks


def places(row: Row, also: List[str]) -> Iterator[str]:
    """Where the patch of a row is put, and what it changes beside that, as ``module:attribute``."""
    for place in [*map(str, row.targets), *also]:
        module, _, attribute = place.partition(":")
        if " " in place or not attribute or ("*" in attribute and attribute != "*"):
            continue
        for name in modules(module) if "*" in module else [module]:
            yield f"{name}:{attribute}"


def modules(pattern: str) -> Iterator[str]:
    """The modules of a package whose names match; of a package that cannot be imported, none."""
    base = pattern.split("*")[0].rpartition(".")[0]
    try:
        package = importlib.import_module(base)
    except Exception:
        return
    for each in pkgutil.walk_packages(package.__path__, f"{base}.", onerror=lambda name: None):
        if fnmatch.fnmatchcase(each.name, pattern):
            yield each.name


def newest(matrix: Matrix, installed: Dict[str, Version]) -> Iterator[Row]:
    """The rows of the installed releases that were tested."""
    for row in matrix.rows:
        version = installed.get(matrix.patches[row.patch].toolkit)
        if version is not None and row.versions.holds(version) and Version(version.public) in row.tested:
            yield row


def main() -> None:
    matrix = loader.load()
    found = detect.installed_versions(matrix)
    installed = {name: Version(text) for name, text in found.items() if text and not text.startswith("(")}
    known = json.loads(Path(looks.FILE).read_text()) if Path(looks.FILE).exists() else {}
    for row in newest(matrix, installed):
        patch = matrix.patches[row.patch]
        for place in places(row, list(patch.also)):
            name, _, attribute = place.partition(":")
            try:
                module = importlib.import_module(name)
            except Exception as error:
                sys.stderr.write(f"{name}: {error!r}\n")
                continue
            look = looks.of(module, attribute)
            if look is not None:
                releases = known.setdefault(place, {}).setdefault(look, [])
                release = f"{patch.toolkit} {Version(str(installed[patch.toolkit])).public}"
                releases[:] = sorted({*releases, release})
    Path(looks.FILE).write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    sys.stdout.write(f"{len(known)} places: {looks.FILE}\n")


if __name__ == "__main__":
    main()
