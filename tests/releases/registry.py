"""Releases on the registries that pip is set up for: which there are, and their files.

Of a wheel only the modules that are asked for are fetched, as parts of the file (torch has half a gigabyte), where the
registry hands them out. An sdist is unpacked. Neither is built, installed or imported, which pip itself would do with
an sdist to learn its metadata.
"""

from __future__ import annotations

import ast
import contextlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename
from packaging.version import InvalidVersion, Version

from tests.releases.code import ReleaseError, Tree, of_folder, of_wheel

_TIMEOUT_S = 60


class Registry:
    """The registries; a context, at whose end what was downloaded is removed."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._finder: Any = None
        self._packages: Dict[str, List[Tuple[Version, Any]]] = {}

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *reason: object) -> None:
        self._stack.close()

    def open(self, package: str, distribution: str, version: Version) -> Tree:
        """The files of a release of a distribution, which is imported as a package.

        Raises:
            ReleaseError: there is no such release, or it cannot be had.
        """
        files = [file for public, file in self._all(distribution) if public == version]
        if not files:
            raise ReleaseError(f"no registry has {distribution} {version}")
        label = f"{distribution} {version}"
        try:
            return self._opened(package, label, min(files, key=_preference).link)
        except ReleaseError:
            raise
        except Exception as error:
            # Which errors a request ends in depends on the release of the library.
            raise ReleaseError(f"{label} cannot be downloaded: {error}") from None

    def _opened(self, package: str, label: str, link: Any) -> Tree:
        import remotezip

        if link.is_wheel and not link.is_file:
            with contextlib.suppress(remotezip.RangeNotSupported):
                parts = remotezip.RemoteZip(link.normalized, timeout=_TIMEOUT_S)
                return of_wheel(package, label, self._stack.enter_context(parts))
        place = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ddpfix-release-")))
        # unearth moves a wheel into a folder that it takes for granted.
        (place / "unpacked").mkdir()
        found = Path(self._finder.download_and_unpack(link, place / "unpacked", place))
        if found.is_dir():
            return of_folder(package, label, found)
        return of_wheel(package, label, self._stack.enter_context(zipfile.ZipFile(found)))

    def _all(self, distribution: str) -> List[Tuple[Version, Any]]:
        if distribution not in self._packages:
            self._finder = self._finder or _made_finder()
            try:
                found = list(self._finder.find_all_packages(distribution))
            except Exception as error:
                raise ReleaseError(f"the registries cannot be asked for {distribution}: {error}") from None
            versions = [(_version(each.version), each) for each in found]
            self._packages[distribution] = [(version, each) for version, each in versions if version is not None]
        return self._packages[distribution]


def _made_finder() -> Any:
    import unearth

    given = pip_settings()
    if "cert" in given:
        # Which of the two is read depends on the release of unearth.
        for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
            os.environ.setdefault(name, given["cert"])
    indexes = [given.get("index-url", "https://pypi.org/simple/"), *given.get("extra-index-url", "").split()]
    return unearth.PackageFinder(
        index_urls=[] if given.get("no-index", "0").lower() in ("1", "true", "yes", "on") else indexes,
        find_links=given.get("find-links", "").split(),
        trusted_hosts=given.get("trusted-host", "").split(),
        # The files are only read, so it does not matter where they would run.
        ignore_compatibility=True,
    )


def pip_settings() -> Dict[str, str]:
    """The settings of pip, from its files and variables, the latter winning."""
    words = [sys.executable, "-m", "pip", "config", "list"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        raise ReleaseError(f"pip does not say where it looks: {done.stderr.strip()}")
    found: Dict[str, str] = {}
    # By name: ``:env:`` is first, and so the last one here.
    for line in sorted(done.stdout.splitlines(), reverse=True):
        key, _, value = line.partition("=")
        found[key.rpartition(".")[2]] = str(ast.literal_eval(value))
    return found


def _version(text: Optional[str]) -> Optional[Version]:
    """The release that a build is of: builds of one release differ in the local part only."""
    try:
        return Version(Version(text or "").public)
    except InvalidVersion:
        return None


def _preference(package: Any) -> int:
    """A wheel for this machine first, then any wheel, then an sdist; builds with a local part last."""
    local = 10 if Version(package.version).local else 0
    if not package.link.is_wheel:
        return local + 2
    return local + int(parse_wheel_filename(package.link.filename)[3].isdisjoint(sys_tags()))
