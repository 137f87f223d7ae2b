"""``python -m tests.packaging.release [FOLDER]``: what is published, built twice and checked (``nox -s release``).

The wheel and the sdist are built in two places that differ in all that a build could let in, and have to be equal,
byte by byte. They are checked with twine and check-wheel-contents, and the conda recipe is rendered.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, List, Optional

ROOT = Path(__file__).resolve().parent.parent.parent
FORGE = ROOT / ".github"
WORKFLOW = FORGE / "workflows" / "release.yml"
TESTS = FORGE / "workflows" / "tests.yml"
CITATION = ROOT / "CITATION.cff"
FORMS = (FORGE / "ISSUE_TEMPLATE" / "job.yml", FORGE / "ISSUE_TEMPLATE" / "toolkit.yml")
RECIPE = ROOT / "recipe" / "recipe.yaml"
# What the places of the two builds have of their own, beside their folder and the times of their files.
SURROUNDINGS = (
    {"TZ": "UTC", "LC_ALL": "C", "PYTHONHASHSEED": "1", "UMASK": "022"},
    {"TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "2", "UMASK": "077"},
)
DAY = 24 * 3600


class ReleaseError(Exception):
    """What is about to be published is not what it should be."""


def command(*words: object, env: Optional[Dict[str, str]] = None, cwd: Path = ROOT) -> str:
    """The output of a command.

    Raises:
        ReleaseError: the command failed.
    """
    environ = {**os.environ, **(env or {})}
    mask = int(environ.pop("UMASK", "022"), 8)
    texts = [str(word) for word in words]

    def before() -> None:
        os.umask(mask)

    done = subprocess.run(texts, env=environ, cwd=str(cwd), capture_output=True, text=True, preexec_fn=before)
    if done.returncode:
        raise ReleaseError(f"{' '.join(texts)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def epoch() -> str:
    """The time of the last commit, which all files in what is published have."""
    return command("git", "log", "-1", "--format=%ct").strip()


def copy_tree(folder: Path, age: float) -> Path:
    """A copy of the files that git has or would add, all of them so many seconds old."""
    listed = command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, folder / name
        if source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(source), str(target))
            os.utime(str(target), (time.time() - age, time.time() - age))
    return folder


def build(source: Path, folder: Path, surroundings: Dict[str, str], when: str) -> List[Path]:
    """The sdist and, made from it, the wheel of a tree, as ``python -m build`` makes them."""
    words = (sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source)
    command(*words, env={**surroundings, "SOURCE_DATE_EPOCH": when}, cwd=folder.parent)
    return sorted(folder.iterdir())


def build_twice(folder: Path) -> List[Path]:
    """Build in two places; the files of the first.

    Raises:
        ReleaseError: a file of the second is another one.
    """
    found = []
    for number, surroundings in enumerate(SURROUNDINGS):
        place = folder / ("first" if number == 0 else "the second place")
        place.mkdir()
        tree = copy_tree(place / "tree", number * 400 * DAY)
        found.append(build(tree, place / "built", surroundings, epoch()))
    first, second = found
    if [path.name for path in first] != [path.name for path in second] or len(first) != 2:
        raise ReleaseError(f"the builds have other files: {first}, {second}")
    for one, other in zip(first, second):
        if not filecmp.cmp(str(one), str(other), shallow=False):
            raise ReleaseError(f"two builds differ: {one} {other}")
    return first


def check_files(files: List[Path]) -> None:
    """What the registry would refuse or warn of, and what does not belong into a wheel."""
    command(sys.executable, "-m", "twine", "check", "--strict", *files)
    command(sys.executable, "-m", "check_wheel_contents", *[path for path in files if path.suffix == ".whl"])


def render_recipe() -> Dict[str, object]:
    """The conda recipe as rattler-build understands it."""
    from rattler_build import Stage0Recipe, VariantConfig

    (rendered,) = Stage0Recipe.from_file(str(RECIPE)).render(VariantConfig())
    found: Dict[str, object] = rendered.recipe.to_dict()
    return found


def main(folder: Path) -> int:
    changed = command("git", "status", "--porcelain").strip()
    if changed:
        raise ReleaseError(f"what is published is a commit, and these files are not in it:\n{changed}")
    if folder.exists() and list(folder.iterdir()):
        raise ReleaseError(f"{folder} has files: it would be published with them")
    render_recipe()
    with tempfile.TemporaryDirectory(prefix="ddpfix-release-") as place:
        files = build_twice(Path(place))
        check_files(files)
        folder.mkdir(parents=True, exist_ok=True)
        published = [Path(shutil.copy(str(path), str(folder))) for path in files]
    for path in published:
        print(f"{path}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main((Path(sys.argv[1]) if sys.argv[1:] else ROOT / "dist").resolve()))
