"""What a person reads says what happens in the field's words; these phrases each stood for several of them."""

from __future__ import annotations

import ast
import re
from itertools import product
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

import pytest

from ddpfix.rules.finding import in_short
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


# No text of the sources has a line longer than 240 characters, so that a line of a log can be read.


LONGEST = 240
# What is put in while a program runs counts as so many characters.
HIDDEN = "…" * 8
# What the names of a file stand for: all that is assigned to them.
Named = Dict[str, List[ast.expr]]


def texts(node: ast.AST, named: Named) -> List[str]:
    """Return the texts that an expression may be; [] where the source has none."""
    if isinstance(node, ast.Constant):
        return [re.sub(r"\{[^{}]*\}", HIDDEN, node.value)] if isinstance(node.value, str) else []
    if isinstance(node, ast.Name):
        return [text for value in named.get(node.id, ()) for text in texts(value, {})]
    if isinstance(node, ast.IfExp):
        return [*texts(node.body, named), *texts(node.orelse, named)]
    if isinstance(node, ast.FormattedValue):
        return texts(node.value, named) or [HIDDEN]
    if isinstance(node, ast.JoinedStr):
        # A constant of the file is as good as its text.
        return ["".join(pieces) for pieces in product(*(texts(part, named) for part in node.values))]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = [texts(side, named) for side in (node.left, node.right)]
        return ["".join(pieces) for pieces in product(*(side or [HIDDEN] for side in sides))] if any(sides) else []
    return []


def of_file(path: Path) -> Iterator[Tuple[int, str]]:
    """The texts of a file that are no docstrings, each with its line."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    named: Named = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            named.setdefault(node.targets[0].id, []).append(node.value)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Constant, ast.JoinedStr, ast.BinOp)) and id(node) not in docstrings:
            yield from ((node.lineno, text) for text in texts(node, named))


def too_long(path: Path) -> List[Tuple[int, str]]:
    return [found for found in of_file(path) if max(map(len, found[1].splitlines()), default=0) > LONGEST]


@pytest.mark.parametrize("folder", ["ddpfix", "patches"])
def test_no_line_is_too_long(folder: str) -> None:
    files = {
        str(path.relative_to(readme.README.parent)): too_long(path)
        for path in sorted((readme.README.parent / folder).rglob("*.py"))
    }
    assert {name: found for name, found in files.items() if found} == {} and len(files) > 100


def test_what_is_put_in_counts(tmp_path: Path) -> None:
    file = tmp_path / "said.py"
    file.write_text(
        f'ONE = "{"a" * 200}"\n\n\ndef say(a):\n    """{"b" * 300}"""\n    log(f"{{ONE}} of {{a}}" + str(a))\n'
    )
    assert [len(text) for _, text in of_file(file) if len(text) > 200] == [220, 212]
    file.write_text(f'ONE = "{"a" * 200}"\n\n\ndef say(a):\n    log(f"{{ONE}}\\n{"b" * 230}", f"{{ONE}}{"b" * 41}")\n')
    assert [len(text) for _, text in too_long(file)] == [241]


def test_names_fit_into_a_line() -> None:
    names = [f"wav2vec2.encoder.layers.{number}.weight" for number in range(9)]
    assert in_short(names) == "wav2vec2.encoder.layers.0, wav2vec2.encoder.layers.1 and 7 more"
    assert in_short([f"h.{number}.w" for number in range(9)]) == "h.0, h.1, h.2, h.3 and 5 more"
    assert in_short(["a" * 99 + ".weight"]) == "a" * 99
