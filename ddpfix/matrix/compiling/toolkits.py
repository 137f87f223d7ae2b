"""Reads the part ``toolkits:`` of the matrix: their names, how their versions are found, and shared places."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, Optional, Set, Tuple

import yaml

from ddpfix.matrix.compiling.nodes import Node
from ddpfix.matrix.model import Mark, Target

_FILE = re.compile(r"^\w[\w.-]*$")
_INSIDE = re.compile(r"^\w[\w.-]*(/\w[\w.-]*)*$")
_PLACE = re.compile(r"^[A-Za-z_]\w*(\.\w+)*$")
_TARGET = re.compile(r"^[A-Za-z_]\w*(\.[\w*]+)*:(\*|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)$")


@dataclass
class Toolkits:
    """The contents of the part, by toolkit.

    Attributes:
        names: the distribution that contains it.
        files: the file in the package that holds its version, if there is one.
        marks: what it looks like in each version, where nothing else shows the version.
        places: what rows of its patches refer to by a name.
        wrapped: the functions that its patches only wrap.
    """

    names: Dict[str, str] = field(default_factory=dict)
    files: Dict[str, str] = field(default_factory=dict)
    marks: Dict[str, Tuple[Mark, ...]] = field(default_factory=dict)
    places: Dict[str, Dict[str, Target]] = field(default_factory=dict)
    wrapped: Set[str] = field(default_factory=set)
    _nodes: Dict[Tuple[str, str], Node] = field(default_factory=dict)
    _used: Set[Tuple[str, str]] = field(default_factory=set)

    def place(self, toolkit: str, node: Node) -> Target:
        """Return the target that a name stands for: a place of the patch's toolkit, or one of torch, which all use."""
        name = node.text()
        known = {place: owner for owner in ("torch", toolkit) for place in self.places.get(owner, {})}
        if name not in known:
            accepted = ", ".join([*known, "a target like 'package.module:Class.method'"])
            node.fail(f"{name!r} is no place of {toolkit}; expected {accepted}")
        self._used.add((known[name], name))
        return self.places[known[name]][name]

    def located(self, node: Node) -> Tuple[str, str]:
        """(module, attribute) of a target that is written out."""
        text = node.text()
        if not _TARGET.match(text):
            node.fail(f"{text!r} is not a target; write it like 'package.module:Class.method'")
        module, _, attribute = text.partition(":")
        # Only imports of toolkits are watched: a patch on anything else would wait for ever.
        if module.partition(".")[0] not in self.names:
            node.fail(f"{text!r} is in no toolkit; expected {', '.join(self.names)}")
        return module, attribute

    def refuse_unused(self) -> None:
        for (toolkit, name), node in self._nodes.items():
            if (toolkit, name) not in self._used:
                node.fail(f"no row of {toolkit} refers to the place {name!r}; take it out")


def read_toolkits(node: Node) -> Toolkits:
    """Return the part as data; raise MatrixError for errors in it."""
    found = Toolkits()
    shared: Dict[str, Node] = {}
    wrapped: Dict[str, Node] = {}
    for name, entry in node.mapping(optional=None).items():
        if isinstance(entry.node, yaml.ScalarNode):
            found.names[name] = entry.text()
            continue
        keys = entry.mapping(required=("distribution",), optional=("version_file", "marks", "places", "wrapped"))
        found.names[name] = keys["distribution"].text()
        _read_version(name, entry, keys, found)
        if "wrapped" in keys:
            wrapped[name] = keys["wrapped"]
        if "places" in keys:
            shared[name] = keys["places"]
    if "torch" not in found.names:
        node.fail("the toolkit 'torch' is missing")
    # Last, because a place may be in another toolkit.
    for name, places in shared.items():
        found.places[name] = {}
        for place, item in places.mapping(optional=None).items():
            found.places[name][place] = _place(place, item, found)
            found._nodes[name, place] = item
    for name, listed in wrapped.items():
        for item in listed.items():
            known = found.places.get(name, {}).get(item.text())
            found.wrapped.add(str(known if known is not None else Target(*found.located(item))))
    return found


def _read_version(name: str, entry: Node, keys: Dict[str, Node], found: Toolkits) -> None:
    if len(keys) == 1 or ("marks" in keys and "version_file" in keys):
        entry.fail("beside distribution, either version_file or marks is expected, or places")
    if "marks" in keys:
        found.marks[name] = tuple(_mark(item) for item in keys["marks"].items())
    if "version_file" in keys:
        found.files[name] = keys["version_file"].text()
        if not _FILE.match(found.files[name]):
            keys["version_file"].fail(f"{found.files[name]!r} is not the name of a file in the package")


def _place(name: str, node: Node, toolkits: Toolkits) -> Target:
    if not _PLACE.match(name):
        node.fail(f"{name!r} is not the name of a place; write it like 'Class.method'")
    if isinstance(node.node, yaml.ScalarNode):
        return Target(*toolkits.located(node))
    entry = node.mapping(required=("at", "expects"))
    return Target(*toolkits.located(entry["at"]), expects=entry["expects"].texts())


def _mark(node: Node) -> Mark:
    entry = node.mapping(required=("version",), optional=("files", "no_files", "words", "no_words"))
    if "files" not in entry and "words" not in entry:
        node.fail("a mark needs files or words that are there; without them it would hold for every package")

    def files(key: str) -> Tuple[str, ...]:
        return tuple(_inside(item) for item in entry[key].items()) if key in entry else ()

    def words(key: str) -> Tuple[Tuple[str, str], ...]:
        found = entry[key].mapping(optional=None) if key in entry else {}
        return tuple((_inside(item, file), item.text()) for file, item in found.items())

    version = entry["version"].version()
    return Mark(str(version), files("files"), files("no_files"), words("words"), words("no_words"))


def _inside(node: Node, path: Optional[str] = None) -> str:
    """Return a path in the package, of a file or a folder; never one that leads out of it."""
    path = node.text() if path is None else path
    if not _INSIDE.match(path):
        node.fail(f"{path!r} is not a path in the package; write it like 'utils/executor.py'")
    return path
