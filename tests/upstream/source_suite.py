"""A toolkit's own tests from a checkout, run on the release that is installed, stock and under ddpfix."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Dict, List, Sequence, Set, Tuple

from packaging.version import Version

from ddpfix.matrix import detect, loader
from tests.support import ranks
from tests.upstream.outcomes import Outcome
from tests.upstream.sources import LEFT_OUT, Source

PLUGIN = Path(__file__).resolve().parent / "plugin"
OPTIONS = ("-q", "-n", "1", "-p", "no:cacheprovider", "-p", "upstream_applied")
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}


class SourceError(Exception):
    """The checkout is not one of the release that is installed."""


class SourceSuite:
    """The tests of one toolkit: ``folder`` gets a copy of the checkout's, without the toolkit itself."""

    # Seconds for the files of one pattern.
    LIMIT = 1800.0

    def __init__(self, source: Source, checkout: Path, folder: Path) -> None:
        self.source, self.folder = source, folder
        # Before what is installed.
        self.paths = [PLUGIN] if source.version else [PLUGIN, checkout]
        # The release that they are run on, and the version that the checkout says.
        self.installed, self.written = versions(source, checkout)
        for part in source.parts:
            (folder / part).parent.mkdir(parents=True, exist_ok=True)
            if (checkout / part).is_dir():
                shutil.copytree(checkout / part, folder / part, symlinks=True)
            elif (checkout / part).exists():
                shutil.copy(checkout / part, folder / part)
        if source.place:
            (folder / source.place).parent.mkdir(parents=True, exist_ok=True)
            (folder / source.place).symlink_to(next(detect.folders(source.package)))
        self.applied: Set[str] = set()  # patches of ddpfix, in some process of the tests
        self.seconds: Dict[str, float] = {}  # of each mode

    def groups(self, parts: Sequence[str] = ()) -> List[List[str]]:
        """The test files that are not left out, those of a pattern together, with one of these texts in their path."""
        left_out = LEFT_OUT[self.source.package]
        found = []
        for pattern in self.source.files:
            names = sorted(path.relative_to(self.folder).as_posix() for path in self.folder.glob(pattern))
            kept = [name for name in names if not any(part in name for part in left_out)]
            found.append([name for name in kept if not parts or any(part in name for part in parts)])
        return [names for names in found if names]

    def run(self, names: Sequence[str], more: Dict[str, str], limit: float = LIMIT) -> Dict[str, Outcome]:
        """The outcome of each test of these files, or of single tests (FILE::CLASS::TEST), in one pytest.

        A worker that dies costs the test that it ran (pytest-xdist); past the limit, all that was not told is *hung*.
        """
        left_out = " and ".join(f"not {part}" for part in LEFT_OUT[self.source.package])
        with tempfile.TemporaryDirectory(prefix="ddpfix-upstream-") as place:
            words = [sys.executable, "-m", "pytest", *OPTIONS, *names, *(["-k", left_out] if left_out else [])]
            own = {"UPSTREAM_FOLDER": place, "PYTHONPATH": os.pathsep.join(map(str, self.paths))}
            code, output = ranks.run(words, ranks.environment({**OFFLINE, **own, **more}), self.folder, limit)
            for path in Path(place).glob("*.applied"):
                self.applied.update(path.read_text(encoding="utf-8").split())
            found = Path(place) / "found.json"
            if found.exists():
                told = json.loads(found.read_text(encoding="utf-8"))
                return {name: Outcome(*each) for name, each in told.items()}
            word = "hung" if code == ranks.OVERDUE else "failed"
            return {name: Outcome(word, limit, output[-3000:]) for name in names}


def versions(source: Source, checkout: Path) -> Tuple[str, str]:
    """The release that is tested, and what the checkout says of itself; SourceError if they differ."""
    if not source.version:
        found = version_of_tree(source.package, checkout)
        return found, found
    text = (checkout / source.version).read_text(encoding="utf-8")
    # The file itself, or what it gives ``__version__``.
    lines = [line.split("=")[1] for line in text.splitlines() if line.startswith("__version__ =")]
    installed, written = metadata.version(source.package), (lines[0] if lines else text).strip().strip("\"'")
    meant = source.wrong.get(written, written) if installed in source.wrong.values() else written
    if Version(meant).base_version != Version(installed).base_version:
        told = f"{source.package} {installed} is installed; check out {source.tag}"
        raise SourceError(f"{checkout} is {written}, and {told}")
    return installed, written


def version_of_tree(package: str, checkout: Path) -> str:
    """The version of a package in a checkout, by the marks of the matrix."""
    sys.path.insert(0, str(checkout))
    try:
        found = detect.recognise(package, loader.load().marks[package])
    finally:
        sys.path.remove(str(checkout))
    if found in (None, detect.UNRECOGNISED):
        raise SourceError(f"{checkout} has no {package} of a release that the matrix knows")
    return str(found)
