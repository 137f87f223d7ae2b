"""The README and the docs say what the matrix and the code say, and CI runs the README's commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict

import pytest

from tests.support import readme

ROOT = readme.README.parent
PAGES = [readme.README, ROOT / "CONTRIBUTING.md", *sorted(readme.DOCS.glob("*.md"))]


@pytest.mark.parametrize("path, parts", list(readme.generated()), ids=lambda found: getattr(found, "name", ""))
def test_generated_parts_are_up_to_date(path: Path, parts: Dict[str, str]) -> None:
    text = path.read_text(encoding="utf-8")
    assert readme.filled(text, parts) == text, "run: python -m tests.support.readme"


def test_the_versions_are_up_to_date() -> None:
    assert readme.VERSIONS.read_text(encoding="utf-8") == readme.versions(), "run: python -m tests.support.readme"


def test_ci_runs_the_command_of_the_readme() -> None:
    text = readme.README.read_text(encoding="utf-8")
    commands = [line for line in text.splitlines() if line.startswith("python3 -m venv")]
    assert len(commands) == 2
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "README.md" in script


def test_the_readme_is_short() -> None:
    assert len(readme.README.read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_the_project_exist(page: Path) -> None:
    """Each ``python -m tests.X`` of the pages is a module with a main part."""
    for name in re.findall(r"python -m (tests(?:\.\w+)+)", page.read_text(encoding="utf-8")):
        path = ROOT.joinpath(*name.split("."))
        found = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
        assert "__main__" in found.name or '__name__ == "__main__"' in found.read_text(encoding="utf-8"), name
