"""The page of all messages (docs/messages.md), read from the calls that log or raise them.

A part of a message that is made while a program runs is written ``…``. Text that a function puts together in several
steps is listed in the pieces in which it stands in the source.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Set

ROOT = Path(__file__).parents[2]
# The functions of ddpfix/log.py, and what comes of each.
LOGGED = {
    "info": "info, from rank 0",
    "once": "info, from rank 0, once",
    "warning": "warning, from rank 0, once",
    "on_every_rank": "warning, from each rank, once",
    "error": "error, from each rank",
}
RAISED, PART = "raised", "a part"
# Of ddpfix/ranks/store/lowest_rank.py.
LOWEST = "from the lowest rank on which it happened, once"
# A piece of text with fewer words is no sentence.
_WORDS = 6
# What is run by a person is explained by its own output.
_LEFT_OUT = ("ddpfix/cli", "ddpfix/matrix", "ddpfix/_site")
HIDDEN = "…"
# What the names of a file stand for: all that is assigned to them.
Named = Dict[str, List[ast.expr]]


class Message(NamedTuple):
    """One message.

    Attributes:
        kind: of :data:`LOGGED`, :data:`RAISED` or :data:`PART`.
        text: with :data:`HIDDEN` for what is put in.
        line: of the source.
    """

    kind: str
    text: str
    line: int


def files() -> List[Path]:
    """The files that say something to a user whose job runs."""
    found = sorted([*ROOT.glob("ddpfix/**/*.py"), *ROOT.glob("patches/**/*.py")])
    return [each for each in found if not str(each.relative_to(ROOT)).startswith(_LEFT_OUT)]


def texts(node: Optional[ast.AST], named: Named) -> List[str]:
    """The texts that an expression may be; [] where it is none that stands in the source."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        return ["".join(_piece(part, named) for part in node.values)]
    if isinstance(node, ast.Name):
        return [text for value in named.get(node.id, ()) for text in texts(value, {})]
    if isinstance(node, ast.IfExp):
        return [*texts(node.body, named), *texts(node.orelse, named)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mod)):
        return [left + HIDDEN for left in texts(node.left, named)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return [_filled(text) for text in texts(node.func.value, named)]
    return []


def _piece(part: ast.AST, named: Named) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    if not (isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name)):
        return HIDDEN
    # A constant of the file is as good as its text.
    return next(iter(texts(part.value, named)), HIDDEN)


def _filled(text: str) -> str:
    pieces, rest = [], text
    while "{" in rest and "}" in rest:
        before, _, rest = rest.partition("{")
        rest = rest.partition("}")[2]
        pieces += [before, HIDDEN]
    return "".join([*pieces, rest])


def of_file(path: Path) -> List[Message]:
    """The messages of one file, in its order; each once."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    named: Named = {}
    for node in (each for each in ast.walk(tree) if isinstance(each, ast.Assign)):
        for target in node.targets:
            if isinstance(target, ast.Name):
                named.setdefault(target.id, []).append(node.value)
    found: List[Message] = []
    seen: Set[str] = set()
    for message in _of_tree(tree, named):
        text = " ".join(message.text.split())
        if text not in seen and len(text.replace(HIDDEN, "").split()) >= (_WORDS if message.kind == PART else 2):
            seen.add(text)
            found.append(message._replace(text=text))
    return found


def _of_tree(tree: ast.AST, named: Named) -> Iterator[Message]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            is_logged = node.func.attr in LOGGED and isinstance(node.func.value, ast.Name)
            if is_logged and node.func.value.id == "log":  # type: ignore[attr-defined]
                yield from (Message(LOGGED[node.func.attr], text, node.lineno) for text in texts(node.args[0], named))
            elif ast.unparse(node.func) == "lowest.report":
                yield from (Message(LOWEST, text, node.lineno) for text in texts(node.args[1], named))
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            yield from (Message(RAISED, text, node.lineno) for text in texts(node.exc.args[0], named))
        elif isinstance(node, ast.Return):
            yield from (Message(PART, text, node.lineno) for text in texts(node.value, named))
    # What is handed on as an argument.
    for value in (value for values in named.values() for value in values):
        yield from (Message(PART, text, value.lineno) for text in texts(value, {}))


def _folder(path: Path) -> str:
    return str(path.parent.relative_to(ROOT)).replace("\\", "/")


def page() -> str:
    """The messages by folder, as a list of Markdown."""
    lines: List[str] = []
    by_folder: Dict[str, List[str]] = {}
    for path in files():
        listed = [_line(message, path) for message in of_file(path)]
        by_folder.setdefault(_folder(path), []).extend(listed)
    for folder, listed in by_folder.items():
        lines += ["", f"## `{folder}`", "", *listed] if listed else []
    return "\n".join(lines[1:])


def _line(message: Message, path: Path) -> str:
    text = message.text.replace("|", "\\|").replace("<", "&lt;")
    return f"- {text} — *{message.kind}*, `{path.name}`"


def matches(line: str, text: str) -> bool:
    """Whether a line may have been made from a text: its pieces stand in it, one after the other."""
    rest = line
    for piece in filter(None, (each.strip() for each in text.split(HIDDEN))):
        _, found, rest = rest.partition(piece)
        if not found:
            return False
    return True
