"""Releases on the registries that pip is set up for: which there are, and their files.

A wheel is downloaded and opened; of a big one (torch has half a gigabyte) only the modules that are asked for are
fetched, as parts of the file. An sdist is unpacked. Neither is built, installed or imported, which pip itself would do
with an sdist to learn its metadata.
"""

from __future__ import annotations

import ast
import contextlib
import logging
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional

from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from tests.releases import tree
from tests.releases.tree import DriftError, Tree

# Longer wheels are not downloaded as a whole, where the registry hands out parts of a file.
_BIG = 64 << 20
_TIMEOUT_S = 60
_OPTIONS = ("index-url", "extra-index-url", "find-links", "trusted-host", "cert", "no-index")
_EXTRA = "the command drift needs unearth and remotezip: pip install 'ddpfix[drift]'"


class Registry:
    """The registries; a context, at whose end what was downloaded is removed."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._messages: List[str] = []
        self._finder: Any = None
        self._folder = Path()
        self._packages: Dict[str, List[Any]] = {}

    def __enter__(self) -> Registry:
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ddpfix-drift-")))
        return self

    def __exit__(self, *reason: object) -> None:
        self._stack.close()

    def versions(self, distribution: str) -> List[Version]:
        """The releases and pre-releases, the oldest first; none where no registry knows the name.

        Raises:
            DriftError: no registry could be asked.
        """
        return sorted({_version(each) for each in self._all(distribution)})

    def open(self, package: str, distribution: str, version: Version) -> Tree:
        """The files of a release.

        Args:
            package: its import name.
            distribution: its name on the registry.
            version: which one.

        Raises:
            DriftError: there is no such release, or it cannot be had.
        """
        files = [each for each in self._all(distribution) if _version(each) == version]
        if not files:
            raise DriftError(f"no registry has {distribution} {version}{self._because()}")
        chosen = min(files, key=_preference)
        label = f"{distribution} {version}"
        try:
            return self._opened(package, label, chosen)
        except DriftError:
            raise
        except Exception as error:
            # Which errors a request ends in depends on the release of the library.
            raise DriftError(f"{label} cannot be downloaded: {error}") from None

    def _opened(self, package: str, label: str, chosen: Any) -> Tree:
        link = chosen.link
        if link.is_wheel and not link.is_file and _length(link.normalized) > _BIG:
            parts = self._parts(link.normalized)
            if parts is not None:
                return tree.of_wheel(package, label, parts, near=False)
        place = self._folder / f"{len(list(self._folder.iterdir()))}"
        # unearth moves a wheel into a folder that it takes for granted.
        (place / "unpacked").mkdir(parents=True)
        found = Path(self._finder.download_and_unpack(link, place / "unpacked", place))
        return tree.of_folder(package, label, found) if found.is_dir() else tree.of_archive(package, label, found)

    def _parts(self, url: str) -> Any:
        """A wheel that is read part by part; None where the registry hands out whole files only."""
        import remotezip

        try:
            return self._stack.enter_context(remotezip.RemoteZip(url, timeout=_TIMEOUT_S))
        except remotezip.RangeNotSupported:
            return None

    def _all(self, distribution: str) -> List[Any]:
        if distribution not in self._packages:
            finder = self._found_finder()
            try:
                found = list(finder.find_all_packages(distribution))
            except Exception as error:
                raise DriftError(f"the registries cannot be asked for {distribution}: {error}") from None
            # Builds of one release differ in the local part only.
            self._packages[distribution] = [each for each in found if _is_version(each.version)]
        return self._packages[distribution]

    def _found_finder(self) -> Any:
        if self._finder is None:
            try:
                import remotezip  # noqa: F401
                import unearth
            except ImportError as error:
                raise DriftError(f"{_EXTRA} ({error})") from None
            given = pip_settings()
            if given.get("cert"):
                # Which of the two is read depends on the release of unearth.
                for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
                    os.environ.setdefault(name, given["cert"][0])
            _keep(self._messages, logging.getLogger("unearth"))
            none = given.get("no-index", ["0"])[-1].lower() in ("1", "true", "yes", "on")
            indexes = [*given.get("index-url", ["https://pypi.org/simple/"]), *given.get("extra-index-url", [])]
            self._finder = unearth.PackageFinder(
                index_urls=[] if none else indexes,
                find_links=given.get("find-links", []),
                trusted_hosts=given.get("trusted-host", []),
                # The files are only read, so it does not matter where they would run.
                ignore_compatibility=True,
            )
        return self._finder

    def _because(self) -> str:
        return f" ({'; '.join(dict.fromkeys(self._messages))})" if self._messages else ""


class _Kept(logging.Handler):
    def __init__(self, messages: List[str]) -> None:
        super().__init__()
        self.messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def _keep(messages: List[str], logger: logging.Logger) -> None:
    """What a library would print goes into our own messages."""
    logger.addHandler(_Kept(messages))
    logger.propagate = False


def pip_settings() -> Dict[str, List[str]]:
    """Where pip looks for packages, by its own configuration: files and variables, the latter winning."""
    words = [sys.executable, "-m", "pip", "config", "list"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        lines = done.stdout.splitlines() if done.returncode == 0 else []
    except (OSError, subprocess.TimeoutExpired):
        lines = []
    found: Dict[str, List[str]] = {}
    for option in _OPTIONS:
        values = {_section(line): _value(line) for line in lines if _named(line) == option}
        variable = os.environ.get("PIP_" + option.upper().replace("-", "_"))
        chosen = variable or next((values[one] for one in (":env:", "download", "global") if values.get(one)), None)
        if chosen:
            found[option] = [chosen] if option == "cert" else shlex.split(chosen)
    return found


def _section(line: str) -> str:
    return line.partition("=")[0].rpartition(".")[0]


def _named(line: str) -> str:
    return line.partition("=")[0].rpartition(".")[2]


def _value(line: str) -> str:
    try:
        return str(ast.literal_eval(line.partition("=")[2]))
    except (ValueError, SyntaxError):
        return ""


def _is_version(text: Optional[str]) -> bool:
    try:
        return bool(text) and Version(text or "") is not None
    except ValueError:
        return False


def _version(package: Any) -> Version:
    return Version(Version(package.version).public)


def _preference(package: Any) -> int:
    """A wheel for this machine first, then any wheel, then an sdist; builds with a local part last."""
    local = 10 if Version(package.version).local else 0
    if not package.link.is_wheel:
        return local + 2
    try:
        tags = parse_wheel_filename(package.link.filename)[3]
    except ValueError:
        return local + 2
    return local + (0 if not tags.isdisjoint(sys_tags()) else 1)


def _length(url: str) -> int:
    """The length of a file in bytes; 0 where the registry does not say."""
    import requests

    answer = requests.head(url, allow_redirects=True, timeout=_TIMEOUT_S)
    length = answer.headers.get("Content-Length", "")
    return int(length) if answer.ok and length.isdigit() else 0
