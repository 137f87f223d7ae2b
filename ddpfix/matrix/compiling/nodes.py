"""YAML as data with line numbers, so that every error in the matrix names the file and the line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, NoReturn, Optional, Sequence, Tuple

import yaml
from packaging.version import Version

from ddpfix.matrix.model import MatrixError

# libyaml's loader, where PyYAML was built with it, takes a tenth of the time.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Data of JSON: a patch, a row, a target or a mark, each with the keys of its class in ddpfix.matrix.model.
Plain = Dict[str, Any]
# What makes a value of a node; it fails at the node where the value is not accepted.
Kind = Callable[["Node"], Any]


class Node:
    """A YAML node with its line number. Only mappings, sequences and plain scalars are accepted."""

    def __init__(self, node: yaml.Node, path: Path, key: Optional[yaml.Node] = None) -> None:
        self.node, self.path = node, path
        # A value below its key is looked for in the key's line.
        self.line = int((key or node).start_mark.line) + 1

    def fail(self, message: str) -> NoReturn:
        raise MatrixError(f"{self.path}:{self.line}: {message}")

    @property
    def is_plain(self) -> bool:
        return isinstance(self.node, yaml.ScalarNode)

    def mapping(self, required: Sequence[str] = (), optional: Optional[Sequence[str]] = None) -> Dict[str, Node]:
        """Return the entries; ``optional=None`` accepts any key."""
        if not isinstance(self.node, yaml.MappingNode):
            self.fail("a mapping is expected here")
        found: Dict[str, Node] = {}
        for key_node, value_node in self.node.value:
            key = Node(key_node, self.path)
            name = key.text()
            if name in found:
                key.fail(f"{name!r} stands twice in this mapping")
            if optional is not None and name not in required and name not in optional:
                key.fail(f"{name!r} is not known; expected {', '.join([*required, *optional])}")
            found[name] = Node(value_node, self.path, key_node)
        missing = [name for name in required if name not in found]
        if missing:
            self.fail(f"{', '.join(missing)} missing")
        return found

    def record(self, required: Mapping[str, Kind], optional: Mapping[str, Kind]) -> Dict[str, Any]:
        """Return the values by key: of all that are required, and of the others that are there."""
        kinds = {**required, **optional}
        return {name: kinds[name](node) for name, node in self.mapping(list(required), list(optional)).items()}

    def items(self) -> List[Node]:
        if not isinstance(self.node, yaml.SequenceNode):
            self.fail("a list is expected here")
        return [Node(item, self.path) for item in self.node.value]

    def text(self) -> str:
        if not self.is_plain:
            self.fail("a plain value is expected here")
        # A float is refused because other readers of this file would see 4.1 where 4.10 is written.
        if self.node.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:int"):
            self.fail(f"a text is expected here, not {self.node.tag.rsplit(':', 1)[-1]} (put it in quotes)")
        text = str(self.node.value).strip()
        if not text:
            self.fail("a text is expected here, and this one is empty")
        return text

    def one_line(self) -> str:
        return " ".join(self.text().split())

    def texts(self) -> List[str]:
        return [item.text() for item in self.items()]

    def matching(self, pattern: str, what: str, text: Optional[str] = None) -> str:
        """Return this text, or the one given (a key), if a pattern matches the whole of it."""
        text = self.text() if text is None else text
        if not re.fullmatch(pattern, text):
            self.fail(f"{text!r} is {what}")
        return text

    def known(self, accepted: Iterable[str], what: str, text: Optional[str] = None) -> str:
        """Return this text, or the one given (a key), if it is among those that are accepted."""
        text, accepted = self.text() if text is None else text, list(accepted)
        if text not in accepted:
            self.fail(f"{what} {text!r} is not known; expected {', '.join(accepted)}")
        return text

    def version(self) -> Version:
        try:
            return Version(self.text())
        except ValueError:
            # A number of thousands of digits is none of packaging's own errors.
            self.fail(f"{self.text()[:40]!r} is not a version; write it like '4.57.6'")

    def versions(self) -> Tuple[Version, ...]:
        found = tuple(item.version() for item in self.items())
        if not found:
            self.fail("at least one version is expected here; python -m tests.support.tested writes this part")
        return found


def root(path: Path) -> Node:
    """Return the whole file.

    Raises:
        MatrixError: it cannot be read, is not YAML, or is empty.
    """
    try:
        text = path.read_text(encoding="utf-8")
        found = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        raise MatrixError(f"{path}:{line}: not valid YAML: {error.problem or error.context or ''}") from None
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise MatrixError(f"{path}:1: cannot be read as YAML in UTF-8: {error}") from None
    if found is None:
        raise MatrixError(f"{path}:1: the file is empty; expected are schema, toolkits, patches, tested")
    return Node(found, path)
