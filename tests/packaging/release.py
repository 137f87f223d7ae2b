"""``python -m tests.packaging.release [FOLDER]``: builds and checks what is published (``nox -s release``)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Optional

ROOT = Path(__file__).resolve().parent.parent.parent
FORGE = ROOT / ".github"
WORKFLOW = FORGE / "workflows" / "release.yml"
TESTS = FORGE / "workflows" / "tests.yml"
CITATION = ROOT / "CITATION.cff"
FORMS = (FORGE / "ISSUE_TEMPLATE" / "job.yml", FORGE / "ISSUE_TEMPLATE" / "toolkit.yml")
RECIPE = ROOT / "recipe" / "recipe.yaml"


class ReleaseError(Exception):
    """What is about to be published is not what it should be."""


def command(*words: object, env: Optional[Dict[str, str]] = None) -> str:
    """The output of a command.

    Raises:
        ReleaseError: the command failed.
    """
    texts = [str(word) for word in words]
    done = subprocess.run(texts, env={**os.environ, **(env or {})}, cwd=str(ROOT), capture_output=True, text=True)
    if done.returncode:
        raise ReleaseError(f"{' '.join(texts)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


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
    """Build the sdist and, made from it, the wheel of the last commit, whose time all files in them have."""
    changed = command("git", "status", "--porcelain").strip()
    if changed:
        raise ReleaseError(f"what is published is a commit, and these files are not in it:\n{changed}")
    if folder.exists() and list(folder.iterdir()):
        raise ReleaseError(f"{folder} has files: it would be published with them")
    render_recipe()
    when = {"SOURCE_DATE_EPOCH": command("git", "log", "-1", "--format=%ct").strip()}
    command(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, env=when)
    published = sorted(folder.iterdir())
    check_files(published)
    for path in published:
        print(f"{path}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main((Path(sys.argv[1]) if sys.argv[1:] else ROOT / "dist").resolve()))
