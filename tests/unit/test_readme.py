"""The README and the docs say what the matrix and the code say, and CI runs the README's commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import readme

ROOT = readme.README.parent
PAGES = [readme.README, ROOT / "CONTRIBUTING.md", *sorted(readme.DOCS.glob("*.md"))]


@pytest.mark.parametrize("page", readme.generated(), ids=lambda page: page.name)
def test_generated_parts_are_up_to_date(page: Path) -> None:
    assert readme.cog("--check", pages=[page]) == 0, "run: python -m tests.support.readme"


def test_an_old_part_is_found_and_made_anew(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = readme.README.read_text(encoding="utf-8")
    page.write_text(text.replace("| [WeNet]", "| [Old name]"), encoding="utf-8")
    assert readme.cog("--check", pages=[page]) != 0
    assert readme.cog("-r", pages=[page]) == 0
    assert page.read_text(encoding="utf-8") == text


def test_every_page_has_its_generated_part() -> None:
    """A page without it would be up to date for ever."""
    named = {page.name: page.read_text(encoding="utf-8") for page in readme.generated()}
    calls = {"README.md": "toolkits()", "usage.md": "values()", "architecture.md": "rooms.picture()"}
    calls["messages.md"], calls["unused-parameters.md"] = "messages.page()", "transitions()"
    calls["CONTRIBUTING.md"] = "durations()"
    calls["versions.md"], calls["trace.md"] = "versions()", "columns()"
    calls["faults.md"], calls["upstream.md"] = "faults()", "upstream()"
    calls.update((f"{name}.md", f'fixes("{name}")') for name in readme.pages() if (readme.DOCS / f"{name}.md").exists())
    assert {page: text.count(calls[page]) for page, text in named.items()} == dict.fromkeys(calls, 1)


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
