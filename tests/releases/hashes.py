"""Writes what the code of places is in the tested releases: ``python -m tests.releases hashes``.

It replaces the part ``hashes:`` of ``compat_matrix.yaml``. Releases are read, and neither installed nor imported.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import textwrap
from functools import lru_cache
from pathlib import Path
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Set, Tuple

from packaging.version import Version

from ddpfix.matrix.compiling.reader import CURED, Reader
from ddpfix.matrix.model import Matrix, Row
from ddpfix.patching import source_hash, unchanged
from tests.releases.code import Code, Tree, Unreadable, of_folder
from tests.support.compiled import YAML

HEADING = "hashes: # written by python -m tests.releases hashes, from the files of the tested releases"


def _top(place: str) -> str:
    return place.partition(":")[0].partition(".")[0]


@lru_cache(maxsize=None)
def wrapped() -> Set[str]:
    """The functions that fixes only wrap, as the matrix declares them."""
    reader = Reader(YAML)
    reader.plain()
    return reader.wrapped


def relied_on(matrix: Matrix, row: Row, package: str) -> Iterator[str]:
    """What a row and its patch rely on in a package: no families, whose fixes read the source of each member."""
    for place in dict.fromkeys([*map(str, row.targets), *matrix.patches[row.patch].also, *row.also, *row.rests_on]):
        if " " not in place and "*" not in place.partition(":")[0] and _top(place) == package:
            yield place


def text_of(code: Code, place: str) -> Tuple[str, ...]:
    """The hashes that a place may have in a release: several where a condition chooses one."""
    module, _, attribute = place.partition(":")
    try:
        if attribute == "*":
            whole = code.module(module)
            nodes: List[ast.AST] = [] if whole is None else [whole]
        else:
            found = code.find(place)
            nodes = [] if found is None else list(found.nodes)
    except Unreadable:
        nodes = []
    return tuple(dict.fromkeys(map(source_hash.of_node, nodes))) or (unchanged.ABSENT,)


def parameters_of(code: Code, place: str) -> Optional[str]:
    """The parameters of the function at a place, and where it is defined; None where there is none."""
    try:
        found = code.find(place)
    except Unreadable:
        found = None
    names = found.parameters(bar="|") if found is not None else None
    return unchanged.described(place, str(found), names) if names is not None else None


class Kept:
    """What is known of the places of a package, the newest release first."""

    def __init__(self, matrix: Matrix, package: str, only_wrapped: Set[str]) -> None:
        self.matrix, self.package, self.wrapped = matrix, package, only_wrapped
        self.code: Dict[str, List[str]] = {}
        self.parameters: Dict[str, str] = {}

    def add(self, version: Version, code: Code) -> None:
        """Note a release that is older than those before it."""
        by_code, by_call = self._places(version)
        for place in by_code:
            known = self.code.setdefault(place, [])
            known += [each for each in text_of(code, place) if each not in known]
        for place in by_call:
            names = parameters_of(code, place) if place not in self.parameters else None
            if names is not None:
                self.parameters[place] = names

    def _places(self, version: Version) -> Tuple[List[str], List[str]]:
        by_code: Set[str] = set()
        by_call: Set[str] = set()
        for row in self.matrix.rows:
            own = self.matrix.toolkits[self.matrix.patches[row.patch].toolkit] == self.matrix.toolkits[self.package]
            if row.status == CURED and (version in row.tested if own else row is self.matrix.rows_of(row.patch)[-1]):
                for place in relied_on(self.matrix, row, self.package):
                    (by_call if place in self.wrapped and place not in row.rests_on else by_code).add(place)
        return sorted(by_code), sorted(by_call)


def of(matrix: Matrix, package: str, versions: Iterable[Version], read: Callable[[Version], Tree]) -> Kept:
    """What is known of a package by its tested releases."""
    found = Kept(matrix, package, wrapped())
    for version in sorted(versions, reverse=True):
        found.add(version, Code(read(version)))
    return found


def write(found: Dict[str, Kept], newest: Dict[str, str], yaml: Path = YAML) -> None:
    """Replace the entries of some toolkits."""
    text = yaml.read_text(encoding="utf-8")
    whole, _, after = text.partition("\ntested:")
    before, _, own = whole.partition("\nhashes:")
    entries = dict(re.findall(r"^  (\w+):\n((?:    .*\n?)+)", own, re.MULTILINE))
    entries.update({toolkit: _entry(kept, newest[toolkit]) for toolkit, kept in found.items()})
    made = "".join(f"  {toolkit}:\n{entry.rstrip()}\n" for toolkit, entry in sorted(entries.items()))
    yaml.write_text(f"{before.rstrip()}\n\n{HEADING}\n{made}\ntested:{after}", encoding="utf-8")


def _entry(kept: Kept, newest: str) -> str:
    lines = [f"    release: {json.dumps(newest)}", f"    code:{'' if kept.code else ' {}'}"]
    for place, hashes in sorted(kept.code.items()):
        values = textwrap.fill(", ".join(map(json.dumps, hashes)), 110, subsequent_indent=" " * 8)
        lines.append(f"      {json.dumps(place)}: [{values}]")
    lines.append(f"    parameters:{'' if kept.parameters else ' {}'}")
    lines += [f"      {json.dumps(place)}: {json.dumps(names)}" for place, names in sorted(kept.parameters.items())]
    return "\n".join(lines)


def installed(package: str, label: str = "what is installed") -> Tree:
    """The files of a package that is installed here."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations is not None, package
    return of_folder(package, label, Path(spec.submodule_search_locations[0]).parent, package)


def noted_here(matrix: Matrix, package: str) -> Matrix:
    """The matrix as it would be if what is installed here were the newest tested release of a package."""
    code = Code(installed(package))
    hashes = {place: text_of(code, place) for place in matrix.code if _top(place) == package}
    names = {place: parameters_of(code, place) or "" for place in matrix.parameters if _top(place) == package}
    return matrix._replace(code={**matrix.code, **hashes}, parameters={**matrix.parameters, **names})
