"""Which versions of the toolkits are installed, without importing them.

A toolkit without metadata is recognised by the contents of its package.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Collection, Dict, Iterator, Optional, Sequence

from ddpfix.import_hook import Finder
from ddpfix.matrix.model import Mark, Matrix
from ddpfix.modules import globals_of

# In the place of a version, or in front of what is there: a package of that name which is no release of the toolkit.
UNRECOGNISED = "unrecognised"


def installed_versions(matrix: Matrix, later: Collection[str] = ()) -> Dict[str, Optional[str]]:
    """Return the versions of the matrix's toolkits from their metadata or by their marks, without importing them.

    Args:
        later: toolkits that are not looked for yet; their version is None.
    """
    from importlib.metadata import PackageNotFoundError

    versions: Dict[str, Optional[str]] = {}
    for toolkit, distribution in matrix.toolkits.items():
        if toolkit in later or toolkit in matrix.marks:
            # What has marks is known by them alone: its metadata, if any, says 0.0.0 or what else was installed.
            versions[toolkit] = None if toolkit in later else recognise(toolkit, matrix.marks[toolkit])
            continue
        try:
            versions[toolkit] = _version(distribution)
        except PackageNotFoundError:
            # A fork under another name may have that import name, or a folder of the user's own.
            spec = _spec(toolkit)
            versions[toolkit] = f"{UNRECOGNISED} ({spec.origin})" if spec is not None and spec.origin else None
        if toolkit in matrix.version_files:
            versions[toolkit] = _version_in_file(toolkit, matrix.version_files[toolkit]) or versions[toolkit]
    return versions


def _version(distribution: str) -> str:
    """Return the version in the metadata; raise PackageNotFoundError."""
    from importlib import metadata

    found = metadata.distribution(distribution)
    # To parse all of the metadata as a mail, with a page of description, takes three times as long.
    head = (found.read_text("METADATA") or "").partition("\n\n")[0].splitlines()
    return next((line[len(_VERSION) :].strip() for line in head if line.startswith(_VERSION)), None) or found.version


_VERSION = "Version:"


def _version_in_file(toolkit: str, file: str) -> Optional[str]:
    """Return the version of the package that an import would find: a clone may come before the installed release."""
    from importlib.util import find_spec

    try:
        spec = find_spec(toolkit)
        folder = next(iter(spec.submodule_search_locations or ())) if spec is not None else ""
        return (Path(folder) / file).read_text(encoding="utf-8").strip() or None if folder else None
    except (ImportError, OSError, ValueError, StopIteration):
        return None


def recognise(toolkit: str, marks: Sequence[Mark]) -> Optional[str]:
    """Return the version of the package that an import would find.

    Args:
        toolkit: the import name of a top-level package.
        marks: checked in this order; the first one that holds decides.

    Returns:
        A version, :data:`UNRECOGNISED`, or None where no such package is found.
    """
    found = False
    for folder in folders(toolkit):
        found = True
        texts: Dict[str, str] = {}
        version = next((mark.version for mark in marks if _holds(mark, folder, texts)), None)
        if version is not None:
            return version
    return UNRECOGNISED if found else None


def folders(toolkit: str) -> Iterator[Path]:
    """Yield the folders of a package's modules: one, or several where it is a namespace."""
    spec = globals_of(sys.modules.get(toolkit)).get("__spec__") or _spec(toolkit)
    if spec is not None:
        # A single module has no folder; it is found all the same.
        yield from map(Path, spec.submodule_search_locations or (spec.origin or "",))


def _spec(toolkit: str) -> Any:
    # Our own finder would look up the version again, to know whether it waits for this package.
    for other in list(sys.meta_path):
        find = getattr(other, "find_spec", None)
        try:
            spec = find(toolkit, None) if find is not None and not isinstance(other, Finder) else None
        except (ImportError, OSError, ValueError):
            continue
        if spec is not None:
            return spec
    return None


def _holds(mark: Mark, folder: Path, texts: Dict[str, str]) -> bool:
    return (
        all((folder / name).exists() for name in mark.files)
        and not any((folder / name).exists() for name in mark.no_files)
        and all(words in _text(folder, name, texts) for name, words in mark.words)
        and not any(words in _text(folder, name, texts) for name, words in mark.no_words)
    )


def _text(folder: Path, name: str, texts: Dict[str, str]) -> str:
    if name not in texts:
        try:
            texts[name] = (folder / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            texts[name] = ""
    return texts[name]
