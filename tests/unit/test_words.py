"""What a person reads says what happens in the field's words; these phrases each stood for several of them."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Dict, List

import pytest

from tests.support import readme

# A phrase, and what to say in its place.
BANNED: Dict[str, str] = {
    "looks? at|looked at": "inspect, read, check, observe",
    "looks? after|looked after": "manage",
    "comes? together|came together": "synchronise",
    "drifts? apart|drifted apart": "diverge",
    "parts? in silence|parted": "diverge",
    "takes? notes": "record",
    "sets? free": "unfreeze",
    "not to be had": "unavailable",
    "is no more|are no more(?! \\w+ and)": "destroyed, exited",
    "is gone|are gone": "exited, removed, destroyed",
    "told (?:apart|by)": "distinguished, recognised",
    "was told|were told|are told|is told(?! by an option)": "reported, logged",
    "heard|hears": "received",
    "whoever": "whatever, the rank that",
    "of ours": "ddpfix's own",
    "meant": "intended",
    "passes? over": "iteration",
}
PAGES = [readme.README, *sorted(readme.DOCS.rglob("*.md"))]


def found(text: str) -> List[str]:
    words = " ".join(text.split())
    return [match[0] for phrase in BANNED for match in re.finditer(rf"\b(?:{phrase})\b", words, re.IGNORECASE)]


def test_pages_and_messages_say_it_in_the_words_of_the_field() -> None:
    """Among the pages is docs/versions.md, which has the texts of the matrix."""
    for page in PAGES:
        assert found(page.read_text(encoding="utf-8")) == [], page.name


def test_the_words_are_seen() -> None:
    assert found("Replicas drift apart; the process is gone, and it is looked\nat by nobody.") == [
        "looked at",
        "drift apart",
        "is gone",
    ]


def first_lines(source: Path) -> List[str]:
    """Return the first lines of a file's docstrings, of the file itself, its classes and its functions."""
    nodes = ast.walk(ast.parse(source.read_text(encoding="utf-8")))
    texts = [ast.get_docstring(node) for node in nodes if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))]
    return [text.splitlines()[0] for text in texts if text]


@pytest.mark.parametrize("folder", ["ddpfix", "patches"])
def test_docstrings_begin_in_the_words_of_the_field(folder: str) -> None:
    sources = sorted((readme.README.parent / folder).rglob("*.py"))
    lines = {line for source in sources for line in first_lines(source)}
    assert [line for line in sorted(lines) if found(line)] == [] and len(lines) > 500


# The beginning of a noun phrase: the docstring of a function that returns something begins with its verb.
NOUNS = ("Whether ", "The ", "A ", "An ", "What ", "Who ", "Which ", "How ", "Why ", "Those ", "These ", "Where ")


def returns(function: ast.FunctionDef) -> bool:
    """Return whether a function returns something; properties and contexts are named by their thing."""
    marks = [ast.dump(each) for each in function.decorator_list]
    value = ast.dump(function.returns) if function.returns is not None else "None"
    named = any("property" in each or "contextmanager" in each for each in marks) or "ContextManager" in value
    return not named and not value.endswith("value=None)") and value != "None"


@pytest.mark.parametrize("folder", ["ddpfix", "patches"])
def test_docstrings_of_functions_begin_with_their_verb(folder: str) -> None:
    begun: List[str] = []
    for source in sorted((readme.README.parent / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) and returns(node) else None
            begun += [f"{source.name}: {text.splitlines()[0]}"] if text is not None and text.startswith(NOUNS) else []
    assert begun == []
