"""Reads and validates ``compat_matrix.yaml``: makes a :class:`~ddpfix.matrix.model.Matrix` of it.

Every error names the file, the line and what is accepted there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ddpfix.matrix import loader
from ddpfix.matrix.compiling import rows, tested
from ddpfix.matrix.compiling.nodes import Node, root
from ddpfix.matrix.compiling.toolkits import Toolkits, read_toolkits
from ddpfix.matrix.model import Gate, Matrix, MatrixError, Patch, Row, Target
from ddpfix.matrix.settings import SETTINGS, switch_name

SCHEMA = "2"
_ID = re.compile(r"^[a-z]\w*\.[a-z]\w*$")
_HASH = re.compile(r"^([0-9a-f]{12}|absent)$")
_REQUIRED = ("toolkit", "problem", "evidence", "rows")
_OPTIONAL = (
    "code",
    "setting",
    "when",
    "default",
    "needs",
    "instead",
    "examined",
    "also",
    "after",
    "moment",
    "probe",
    "does",
)


class Reader:
    """One file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def matrix(self) -> Matrix:
        """Return the whole matrix; raise MatrixError for errors in it."""
        top = self._top()
        return tested.with_tested(self._untested(top), top["tested"])

    def untested(self) -> Matrix:
        """Return the matrix without the part ``tested:``, which is generated from results and may be outdated."""
        return self._untested(self._top())

    def _top(self) -> Dict[str, Node]:
        if not loader.patches().is_dir():
            raise MatrixError(f"{self.path}:1: the patches are missing; reinstall ddpfix")
        whole = root(self.path)
        # First, because a file of another schema has other keys.
        schema = whole.mapping(optional=None).get("schema")
        if schema is not None:
            schema.choice((SCHEMA,), "schema")
        return whole.mapping(required=("schema", "toolkits", "patches", "tested"), optional=("gate", "hashes"))

    def _untested(self, top: Mapping[str, Node]) -> Matrix:
        toolkits = read_toolkits(top["toolkits"])
        nodes = top["patches"].mapping(optional=None)
        patches: Dict[str, Patch] = {}
        every: List[Row] = []
        for name, node in nodes.items():
            entry = self._entry(name, node)
            patches[name] = self._patch(name, entry, toolkits)
            found = rows.Rows(patches[name], toolkits).read(entry["rows"])
            if not patches[name].code and any(row.status == rows.CURED for row in found):
                node.fail(f"code missing: patch {name!r} has a row with status {rows.CURED}")
            every.extend(found)
        _refuse_shared_variables(nodes, patches)
        _refuse_unknown_needs(nodes, patches)
        toolkits.refuse_unused()
        gate = self._gate(top["gate"], toolkits) if "gate" in top else Gate()
        for name, patch in patches.items():
            if patch.gated and not gate.places:
                nodes[name].fail(
                    f"patch {name!r} has the moment gate, and there is no part gate: that says what opens it"
                )
        order = _order(nodes, patches)
        code, parameters = _hashes(top["hashes"], toolkits) if "hashes" in top else ({}, {})
        names, files, marks = toolkits.names, toolkits.files, toolkits.marks
        return Matrix(names, patches, tuple(every), files, marks, order, gate, code=code, parameters=parameters)

    def _gate(self, node: Node, toolkits: Toolkits) -> Gate:
        entry = node.mapping(required=("places", "passed"))
        opening = tuple(Target(*toolkits.located(item)) for item in entry["places"].items())
        if not opening or any("*" in str(place) for place in opening):
            entry["places"].fail("the gate needs functions, each written like 'package.module:Class.method'")
        return Gate(opening, self._code(entry["passed"]))

    def _entry(self, name: str, node: Node) -> Dict[str, Node]:
        if not _ID.match(name):
            node.fail(f"{name!r} is not a patch id; write it like 'toolkit.fix', in lower case")
        return node.mapping(required=_REQUIRED, optional=_OPTIONAL)

    def _patch(self, name: str, entry: Mapping[str, Node], toolkits: Toolkits) -> Patch:
        setting, when = _wanted(entry)
        return Patch(
            id=name,
            toolkit=entry["toolkit"].choice(list(toolkits.names), "toolkit"),
            code=self._code(entry["code"]) if "code" in entry else "",
            setting=setting,
            when=when,
            problem=" ".join(entry["problem"].text().split()),
            evidence=entry["evidence"].texts(),
            default="default" not in entry or entry["default"].choice(("on", "off"), "default") == "on",
            needs=entry["needs"].texts() if "needs" in entry else (),
            also=entry["also"].texts() if "also" in entry else (),
            after=entry["after"].texts() if "after" in entry else (),
            instead=_instead(entry["instead"], when) if "instead" in entry else {},
            examined=_examined(entry["examined"]) if "examined" in entry else {},
            probe=self._code(entry["probe"]) if "probe" in entry else "",
            does=entry["does"].text() if "does" in entry else "",
            gated="moment" in entry and entry["moment"].choice(("import", "gate"), "moment") == "gate",
        )

    def _code(self, node: Node) -> str:
        code = node.text()
        if not rows.shipped(code):
            node.fail(f"code {code!r} is not shipped; write it like 'toolkit.file:function', in patches/")
        return code


def _wanted(entry: Mapping[str, Node]) -> Tuple[Optional[str], Tuple[str, ...]]:
    """Return the setting that calls for a patch, and the values with which it does."""
    setting = entry["setting"].choice([s.name for s in SETTINGS], "setting") if "setting" in entry else None
    if "when" not in entry:
        return setting, ()
    if setting is None:
        entry["when"].fail("when needs a setting beside it")
    values = next((*s.values, *([s.kind] if s.kind else [])) for s in SETTINGS if s.name == setting)
    return setting, tuple(item.choice(values, f"value of {setting}") for item in entry["when"].items())


def _instead(node: Node, when: Sequence[str]) -> Dict[str, str]:
    """Values that the toolkit does not have, and the ones of its own that replace them."""
    entries = node.mapping(optional=None)
    own = [value for value in when if value not in entries]
    for name, item in entries.items():
        if name not in when:
            item.fail(f"{name!r} is not among the values in when; expected {', '.join(when) or 'none'}")
        item.choice(own, f"value in place of {name}")
    return {name: item.text() for name, item in entries.items()}


def _examined(node: Node) -> Dict[str, Tuple[str, ...]]:
    """Hashes of examined forwards, by name."""
    found: Dict[str, Tuple[str, ...]] = {}
    for name, entry in node.mapping(optional=None).items():
        found[name] = tuple(_hash(item) for item in entry.items())
    return found


def _hashes(node: Node, toolkits: Toolkits) -> Tuple[Dict[str, Tuple[str, ...]], Dict[str, str]]:
    """Return the hashes of places in tested releases, and the parameters of those that are only wrapped."""
    code: Dict[str, Tuple[str, ...]] = {}
    parameters: Dict[str, str] = {}
    for toolkit, entry in node.mapping(optional=None).items():
        if toolkit not in toolkits.names:
            entry.fail(f"toolkit {toolkit!r} is not known; expected {', '.join(toolkits.names)}")
        keys = entry.mapping(required=("release", "code", "parameters"))
        keys["release"].version()
        for place, item in keys["code"].mapping(optional=None).items():
            code[place] = tuple(_hash(one) for one in item.items())
        for place, item in keys["parameters"].mapping(optional=None).items():
            parameters[place] = item.text()
    return code, parameters


def _hash(node: Node) -> str:
    text = node.text()
    if not _HASH.match(text):
        node.fail(f"{text!r} is no hash of code; expected 12 hexadecimal digits, quoted")
    return text


def _refuse_shared_variables(nodes: Mapping[str, Node], patches: Mapping[str, Patch]) -> None:
    """Each patch is switched by a variable that stands for nothing else."""
    taken = {setting.variable: f"the setting {setting.name!r}" for setting in SETTINGS}
    for name in patches:
        variable = switch_name(name)
        if variable in taken:
            nodes[name].fail(f"patch {name!r} would be switched by {variable}, which stands for {taken[variable]}")
        taken[variable] = f"patch {name!r}"


def _order(nodes: Mapping[str, Node], patches: Mapping[str, Patch]) -> Tuple[str, ...]:
    """Return the ids in the order in which patches are put in place: by ``after``, else by the alphabet."""
    found: Dict[str, None] = {}
    waiting = sorted(patches)
    for name in waiting:
        for other in patches[name].after:
            if other not in patches:
                nodes[name].fail(f"patch {name!r} cannot be after {other!r}; expected {', '.join(sorted(patches))}")
    while waiting:
        ready = next((name for name in waiting if all(other in found for other in patches[name].after)), None)
        if ready is None:
            nodes[waiting[0]].fail(f"these patches are each after another one of them: {', '.join(waiting)}")
        found[ready] = None
        waiting.remove(ready)
    return tuple(found)


def _refuse_unknown_needs(nodes: Mapping[str, Node], patches: Mapping[str, Patch]) -> None:
    """What a patch needs is there, and needs nothing itself."""
    for name, patch in patches.items():
        for need in patch.needs:
            if need not in patches or need == name or patches[need].needs:
                known = ", ".join(other for other in patches if other != name and not patches[other].needs)
                nodes[name].fail(f"patch {name!r} cannot need {need!r}; expected {known}")
