"""The README and the docs say what the matrix and the code say, and CI runs the README's commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Set

import pytest

from tests.later import LATER, later
from tests.support import readme

ROOT = readme.README.parent
PAGES = readme.written()
# Texts of the repository that name pages, by what their names end in.
NAMING = (".md", ".py", ".yaml", ".yml", ".toml", ".cff", ".txt", "Containerfile", "run")


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def headings(page: Path) -> Set[str]:
    """The anchors of a page, as a forge makes them of its headings."""
    lines = [line.lstrip("#").strip() for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize("page", readme.generated(), ids=lambda page: page.name)
def test_generated_parts_are_up_to_date(page: Path) -> None:
    assert readme.cog("--check", pages=[page]) == 0, "run: python -m tests.support.readme"


def test_an_old_part_is_found_and_made_anew(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = readme.README.read_text(encoding="utf-8")
    page.write_text(text.replace("[WeNet]", "[Old name]"), encoding="utf-8")
    assert readme.cog("--check", pages=[page]) != 0
    assert readme.cog("-r", pages=[page]) == 0
    assert page.read_text(encoding="utf-8") == text


def test_every_page_has_its_generated_part() -> None:
    """A page without it would be up to date for ever."""
    texts = {named(page): page.read_text(encoding="utf-8") for page in readme.generated()}
    calls = {"README.md": "toolkits()", "docs/README.md": "toolkit_pages()"}
    calls["docs/usage.md"], calls["docs/versions.md"], calls["docs/trace.md"] = "values()", "versions()", "columns()"
    calls["docs/unused-parameters.md"], calls["docs/dev/architecture.md"] = "transitions()", "rooms.picture()"
    calls["docs/dev/faults.md"], calls["docs/dev/upstream.md"] = "faults()", "upstream()"
    toolkits = [name for name in readme.pages() if (readme.DOCS / f"{name}.md").exists()]
    calls.update((f"docs/{name}.md", f'fixes("{name}")') for name in toolkits)
    assert {page: text.count(calls[page]) for page, text in texts.items()} == dict.fromkeys(calls, 1)


def test_ci_runs_the_command_of_the_readme() -> None:
    text = readme.README.read_text(encoding="utf-8")
    commands = [line for line in text.splitlines() if line.startswith("python3 -m venv")]
    assert len(commands) == 2
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "README.md" in script


def test_the_readme_is_short() -> None:
    assert len(readme.README.read_text(encoding="utf-8").splitlines()) <= 120


def test_links_lead_somewhere() -> None:
    """To a file that is there and, within it, to a heading that it has."""
    for page in PAGES:
        for target, _, anchor in re.findall(r"\]\(([^)#]*)(#?)([^)]*)\)", page.read_text(encoding="utf-8")):
            there = page.parent / target if target else page
            assert target.startswith("http") or there.exists(), f"{page.name}: {target}"
            there_is = not anchor or target.startswith("http") or anchor in headings(there)
            assert there_is, f"{page.name}: {target}#{anchor}"


def test_pages_that_sources_name_are_there() -> None:
    folders = ("ddpfix", "patches", "tests", "docs", ".github", ".ci", "recipe")
    sources = [file for name in folders for file in (ROOT / name).rglob("*")] + list(ROOT.glob("*"))
    sources = [file for file in sources if file.name.endswith(NAMING) and file.is_file()]
    pages = {
        (name, page)
        for name in sources
        for page in re.findall(r"(?<![\w/.])docs/[\w/-]+\.md", name.read_text(encoding="utf-8"))
    }
    # A toolkit's page that a newcomer writes: docs/dev/adding-a-toolkit.md.
    dead = {(str(name), page) for name, page in pages if not (ROOT / page).exists() and page != "docs/toykit.md"}
    assert dead == set() and len(pages) > 50


def test_every_page_is_in_the_index() -> None:
    index = (readme.DOCS / "README.md").read_text(encoding="utf-8")
    pages = [str(page.relative_to(readme.DOCS)) for page in readme.DOCS.rglob("*.md") if page.name != "README.md"]
    assert [page for page in sorted(pages) if f"]({page})" not in index] == [] and len(pages) > 30


def test_commands_of_the_project_exist() -> None:
    """Each ``python -m tests.X`` of the pages is a module with a main part."""
    for page in PAGES:
        for name in re.findall(r"python -m (tests(?:\.\w+)+)", page.read_text(encoding="utf-8")):
            path = ROOT.joinpath(*name.split("."))
            found = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
            assert "__main__" in found.name or '__name__ == "__main__"' in found.read_text(encoding="utf-8"), name


def test_what_is_left_for_later_is_there() -> None:
    for key in LATER:
        file, _, function = key.partition("::")
        source = ROOT / "tests" / f"{file}.py"
        assert source.exists() and (not function or f"def {function}(" in source.read_text(encoding="utf-8")), key


def test_tests_share_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LATER, "some/test_file", 2)
    monkeypatch.setitem(LATER, "some/test_file::test_never", 0)
    functions = ["test_a", "test_never", "test_b", "test_c", "test_d"]
    tests = [("unit/test_site", "test_x"), *[("some/test_file", function) for function in functions]]
    assert list(later(tests)) == [False, False, True, True, False, True]
