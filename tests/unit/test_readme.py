"""The README says what the matrix says, and its two commands are the ones that CI runs."""

from __future__ import annotations

from tests.support import readme


def test_generated_parts_are_up_to_date() -> None:
    text = readme.README.read_text(encoding="utf-8")
    assert readme.filled(text) == text, "run: python -m tests.support.readme"
    assert readme.VERSIONS.read_text(encoding="utf-8") == readme.versions(), "run: python -m tests.support.readme"


def test_ci_runs_the_command_of_the_readme() -> None:
    text = readme.README.read_text(encoding="utf-8")
    commands = [line for line in text.splitlines() if line.startswith("python3 -m venv")]
    assert len(commands) == 2
    script = (readme.README.parent / ".ci" / "run").read_text(encoding="utf-8")
    assert "README.md" in script
