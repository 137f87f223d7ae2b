"""Releases of a toolkit that does not exist, and a matrix that has rows for it."""

from __future__ import annotations

import textwrap
from typing import Any, Dict, Mapping, Optional, Sequence

from packaging.version import Version

from ddpfix.matrix.model import Matrix, Patch, Row, Target
from ddpfix.matrix.ranges import Range
from tests.releases.tree import Tree
from tests.releases.watch import Watch

# One file a module; the tested release.
FILES = {
    "kit/__init__.py": "from kit.train import fit\n",
    "kit/train.py": """
        def fit(model, steps=3):
            '''Trains.'''
            for step in range(steps):
                model(step)


        class Base:
            def save(self, folder):
                return folder


        class Trainer(Base):
            def epoch(self, data, flag=False):
                return [self.save(each) for each in data]
        """,
}


def tree(files: Mapping[str, str], version: str = "1.0") -> Tree:
    """A release with these files."""
    texts = {name: textwrap.dedent(text).encode("utf-8", "surrogatepass") for name, text in files.items()}
    paths = {name[:-3].replace("/", ".").replace(".__init__", ""): name for name in texts}
    return Tree("kit", f"kit {version}", paths, lambda name, most: texts[name][:most])


def matrix(*targets: Target, **patch: Any) -> Matrix:
    """A matrix with one row for kit 1.0 to 2, tested on 1.0 alone, that has these targets."""
    empty: Dict[str, Any] = {"setting": None, "when": (), "problem": "-", "evidence": ()}
    made = Patch("kit.fix", "kit", "kit.fix:do", **{**empty, **patch})
    row = Row(made.id, Range("1.0", "2"), "cured", targets, (Version("1.0"),), "-", 7)
    return Matrix({"torch": "torch", "kit": "kit"}, {made.id: made}, (row,))


def row(
    files: Mapping[str, str],
    targets: Sequence[Target],
    version: str = "1.1",
    before: Optional[Mapping[str, str]] = None,
    **patch: Any,
) -> Dict[str, Any]:
    """What became of the row in a release with these files."""
    old = {**FILES, **(before or {})}
    watch = Watch(matrix(*targets, **patch), "kit", lambda tested: tree(old, str(tested)))
    found = watch.release(Version(version), tree(files, version))["rows"]
    assert len(found) == 1
    return dict(found[0])
