"""The Python files of one package, from a folder or a wheel: read, and never written, imported or run."""

from __future__ import annotations

import zipfile
from importlib.util import decode_source
from pathlib import Path, PurePosixPath
from typing import Callable, Dict, Iterable, Mapping, Tuple


class ReleaseError(ValueError):
    """A release cannot be had, or what was asked for makes no sense; the message says which."""


class Unreadable(ValueError):
    """A module cannot be read or parsed; the message says why."""


class Tree:
    """A package, by the names of its modules.

    Args:
        package: its import name.
        label: what it is called in messages, such as ``funasr 1.4.16``.
        paths: where each module is, by its dotted name.
        read: the content of a file.
    """

    def __init__(self, package: str, label: str, paths: Mapping[str, str], read: Callable[[str], bytes]) -> None:
        if not paths:
            raise ReleaseError(f"{label} has no package {package}")
        self.package, self.label, self.paths = package, label, paths
        self._read = read
        self._sources: Dict[str, str] = {}

    def source(self, module: str) -> str:
        """The text of a module; raises Unreadable."""
        if module not in self._sources:
            try:
                self._sources[module] = decode_source(self._read(self.paths[module]))
            except (SyntaxError, UnicodeDecodeError, LookupError, OSError, zipfile.BadZipFile) as error:
                raise Unreadable(f"{module} cannot be read: {error}") from None
        return self._sources[module]


def of_folder(package: str, label: str, folder: Path, inside: str = ".") -> Tree:
    """A package in a folder: a checkout, an unpacked release, or with its name, ``inside`` of which only is read."""
    files = (str(path.relative_to(folder)) for path in (folder / inside).rglob("*.py") if path.is_file())
    return Tree(package, label, modules(package, files), lambda name: (folder / name).read_bytes())


def of_wheel(package: str, label: str, archive: zipfile.ZipFile) -> Tree:
    """A package in a wheel, which stays open as long as the tree is used; raises ReleaseError."""
    return Tree(package, label, modules(package, archive.namelist()), archive.read)


def modules(package: str, paths: Iterable[str]) -> Dict[str, str]:
    """The modules of a package by name, from the paths of files; the shallowest folder of that name counts."""
    found: Dict[Tuple[int, Tuple[str, ...]], Dict[str, str]] = {}
    for path in paths:
        parts = PurePosixPath(path).parts
        if path.endswith(".py") and package in parts[:-1]:
            place = parts.index(package)
            inside = (*parts[place:-1], parts[-1][:-3])
            name = ".".join(inside[:-1] if inside[-1] == "__init__" else inside)
            found.setdefault((place, parts[:place]), {})[name] = path
    return found[min(found)] if found else {}
