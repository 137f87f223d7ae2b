"""The Python files of one package, from a folder, a wheel or an sdist: read, and never written, imported or run."""

from __future__ import annotations

import os
import stat
import tarfile
import zipfile
import zlib
from importlib.util import decode_source
from pathlib import Path, PurePosixPath
from typing import Callable, Dict, Iterable, Iterator, List, Mapping, Tuple

# No module of a toolkit is a tenth as long; what is longer is an attack, or no module.
LIMIT = 8 << 20
# What an sdist may be when it is unpacked.
_ALL = 4 << 30
# What a damaged archive may raise beside its own error.
DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, ValueError, NotImplementedError)


class DriftError(ValueError):
    """A release cannot be had, or what was asked for makes no sense; the message says which."""


class Unreadable(ValueError):
    """A module cannot be read or parsed; the message says why."""


class Tree:
    """A package, by the names of its modules.

    Args:
        package: its import name.
        label: what it is called in messages, such as ``funasr 1.4.16``.
        paths: where each module is, by its dotted name.
        read: the first bytes of a file, up to a number.
        near: whether files are at hand; otherwise each one is a request to a server.
    """

    def __init__(
        self, package: str, label: str, paths: Mapping[str, str], read: Callable[[str, int], bytes], near: bool = True
    ) -> None:
        self.package, self.label, self.paths, self.near = package, label, paths, near
        self._read = read
        self._sources: Dict[str, str] = {}

    def source(self, module: str) -> str:
        """The text of a module; raises Unreadable."""
        if module not in self._sources:
            try:
                data = self._read(self.paths[module], LIMIT + 1)
            except DAMAGED as error:
                raise Unreadable(f"{module} cannot be read: {error}") from None
            if len(data) > LIMIT:
                raise Unreadable(f"{module} is longer than {LIMIT >> 20} MB")
            try:
                self._sources[module] = decode_source(data)
            except (SyntaxError, UnicodeDecodeError, LookupError) as error:
                raise Unreadable(f"{module} is no text: {error}") from None
        return self._sources[module]


def modules(package: str, paths: Iterable[str]) -> Dict[str, str]:
    """The modules of a package by name, from the paths in an archive; the shallowest folder of that name counts."""
    found: Dict[Tuple[int, Tuple[str, ...]], Dict[str, str]] = {}
    for path in paths:
        parts = PurePosixPath(path).parts
        if parts[-1:] and parts[-1].endswith(".py") and package in parts[:-1]:
            place = parts.index(package)
            inside = (*parts[place:-1], parts[-1][:-3])
            name = ".".join(inside[:-1] if inside[-1] == "__init__" else inside)
            found.setdefault((place, parts[:place]), {})[name] = path
    return found[min(found)] if found else {}


def of_folder(package: str, label: str, folder: Path) -> Tree:
    """A package in a folder: a checkout, an unpacked release, site-packages, or the package itself.

    Raises:
        DriftError: it is not there.
    """
    root = next((place for place in _candidates(package, folder) if _has_modules(place)), None)
    if root is None:
        raise DriftError(f"{folder} has no package {package}")
    paths = {_dotted(package, path.relative_to(root)): str(path) for path in _python_files(root)}
    return Tree(package, label, paths, _read_file)


def _candidates(package: str, folder: Path) -> Iterator[Path]:
    yield folder / package
    yield folder / "src" / package
    if folder.name == package:
        yield folder
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise DriftError(f"{folder} cannot be read ({error.strerror})") from None
    for child in inside:
        yield child / package
        yield child / "src" / package


def _has_modules(place: Path) -> bool:
    try:
        return place.is_dir() and next(_python_files(place), None) is not None
    except (OSError, ValueError):
        return False


def _python_files(root: Path) -> Iterator[Path]:
    # A link to a folder may lead in a circle, so these are not followed.
    for folder, _, files in os.walk(root):
        yield from (Path(folder, name) for name in sorted(files) if name.endswith(".py"))


def _dotted(package: str, inside: Path) -> str:
    parts = (package, *inside.with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _read_file(path: str, most: int) -> bytes:
    # Anything may have a module's name: a pipe would be waited for.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("it is no file")
    with open(path, "rb") as file:
        return file.read(most)


def of_wheel(package: str, label: str, archive: zipfile.ZipFile, near: bool = True) -> Tree:
    """A package in a wheel, which stays open as long as the tree is used.

    Raises:
        DriftError: it is not in there.
    """

    def read(path: str, most: int) -> bytes:
        with archive.open(path) as file:
            return file.read(most)

    paths = modules(package, archive.namelist())
    if not paths:
        raise DriftError(f"{label}: no package {package} is in the wheel")
    return Tree(package, label, paths, read, near)


def of_archive(package: str, label: str, path: Path) -> Tree:
    """A package in a file: a wheel, a zip, or an sdist.

    Raises:
        DriftError: the file is damaged, or the package is not in it.
    """
    try:
        if zipfile.is_zipfile(path):
            return of_wheel(package, label, zipfile.ZipFile(path))
        with tarfile.open(path) as archive:
            texts = dict(_members(archive))
    except DAMAGED as error:
        if isinstance(error, DriftError):
            raise
        raise DriftError(f"{path.name} is neither a wheel nor an sdist, or is damaged: {error}") from None
    paths = modules(package, texts)
    if not paths:
        raise DriftError(f"{label}: no package {package} is in the sdist")
    return Tree(package, label, paths, lambda name, most: texts[name][:most])


def _members(archive: tarfile.TarFile) -> Iterator[Tuple[str, bytes]]:
    """The Python files of an sdist; links and devices in it are left alone."""
    total = 0
    for member in archive:
        total += member.size
        if total > _ALL:
            raise DriftError(f"the sdist is longer than {_ALL >> 30} GB when it is unpacked")
        file = archive.extractfile(member) if member.isreg() and member.name.endswith(".py") else None
        if file is not None:
            yield member.name, file.read(LIMIT + 1)


def nearest(tree: Tree, module: str, most: int) -> List[str]:
    """The other modules of a package, those first whose names begin alike; all of them where files are at hand."""
    wanted = module.split(".")

    def distance(name: str) -> int:
        return -len(os.path.commonprefix([wanted, name.split(".")]))

    found = sorted(tree.paths, key=lambda name: (distance(name), name))
    return found if tree.near else found[:most]
