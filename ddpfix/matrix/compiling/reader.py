"""Reads and checks ``compat_matrix.yaml``: makes the data of it that :mod:`ddpfix.matrix.compiled` reads.

Every error names the file, the line and what is accepted there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict, FrozenSet, List, Mapping, Sequence, Set, Tuple

from packaging.version import Version

from ddpfix.matrix import compiled, loader
from ddpfix.matrix.compiling import kinds
from ddpfix.matrix.compiling.nodes import Node, Plain, root
from ddpfix.matrix.model import Matrix, MatrixError
from ddpfix.matrix.ranges import Range, within
from ddpfix.settings.reading import SETTINGS, switch_name

SCHEMA, CURED = "2", "cured"
_STATUSES = (CURED, "not-cured", "not-affected")
_TARGET = r"[A-Za-z_]\w*(\.[\w*]+)*:(\*|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)"
_ROW = ("from", "to", "status", "targets", "rests_on", "also")


class Reader:
    """One file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names: Dict[str, str] = {}
        self._files: Dict[str, str] = {}
        self._marks: Dict[str, List[Plain]] = {}
        # What rows refer to by a name, by toolkit.
        self._places: Dict[str, Dict[str, Plain]] = {}
        #: The functions that fixes only wrap.
        self.wrapped: Set[str] = set()

    def matrix(self) -> Matrix:
        """Return the whole matrix; raise MatrixError for errors in it."""
        return compiled.made(self.plain())

    def untested(self) -> Matrix:
        """Return the matrix without the part ``tested:``, which is generated from results and may be outdated."""
        return compiled.made(self.plain(tested=False))

    def plain(self, tested: bool = True) -> Plain:
        """Return the whole matrix as the data of JSON."""
        if not loader.patches().is_dir():
            raise MatrixError(f"{self.path}:1: the patches are missing; reinstall ddpfix")
        whole = root(self.path)
        # First, because a file of another schema has other keys.
        schema = whole.mapping().get("schema")
        if schema is not None:
            schema.known((SCHEMA,), "schema")
        top = whole.mapping(("schema", "toolkits", "patches", "tested"), ("gate", "hashes"))
        self._read_toolkits(top["toolkits"])
        nodes = top["patches"].mapping()
        patches = {name: self._patch(name, node) for name, node in nodes.items()}
        _check(nodes, patches)
        gate = self._gates(top["gate"]) if "gate" in top else []
        for name, patch in patches.items():
            if patch["gated"] and not gate:
                nodes[name].fail(f"patch {name!r} has the moment gate; there is no part gate, which says what opens it")
        code, parameters = self._released(top["hashes"]) if "hashes" in top else ({}, {})
        return {
            "toolkits": self._names,
            "version_files": self._files,
            "marks": self._marks,
            "order": _order(nodes, patches),
            "gate": gate,
            "newest": self._add_tested(top["tested"], patches) if tested else {},
            "code": code,
            "parameters": parameters,
            "patches": list(patches.values()),
        }

    # Toolkits.

    def _read_toolkits(self, node: Node) -> None:
        later: Dict[str, Dict[str, Node]] = {}
        for name, entry in node.mapping().items():
            if entry.is_plain:
                self._names[name] = entry.text()
                continue
            keys = later[name] = entry.mapping(("distribution",), ("version_file", "marks", "places", "wrapped"))
            self._names[name] = keys["distribution"].text()
            if "version_file" in keys:
                what = "not the name of a file in the package"
                self._files[name] = keys["version_file"].matching(r"\w[\w.-]*", what)
            if "marks" in keys:
                self._marks[name] = [kinds.mark(item) for item in keys["marks"].items()]
        if "torch" not in self._names:
            node.fail("the toolkit 'torch' is missing")
        # Last, because a place may be in another toolkit.
        for name, keys in later.items():
            places = keys["places"].mapping() if "places" in keys else {}
            self._places[name] = {place: self._place(item) for place, item in places.items()}
            for item in keys["wrapped"].items() if "wrapped" in keys else ():
                target = self._places[name].get(item.text()) or self._located(item)
                self.wrapped.add(f"{target['module']}:{target['attribute']}")

    def _place(self, node: Node) -> Plain:
        if node.is_plain:
            return self._located(node)
        entry = node.record({"at": self._located, "expects": Node.texts}, {})
        return {**entry["at"], "expects": entry["expects"]}

    def _located(self, node: Node) -> Plain:
        """Return a target that is written out."""
        text = node.matching(_TARGET, "not a target; write it like 'package.module:Class.method'")
        module, _, attribute = text.partition(":")
        # Only imports of toolkits are watched: a patch on anything else would wait for ever.
        if module.partition(".")[0] not in self._names:
            node.fail(f"{text!r} is in no toolkit; expected {', '.join(self._names)}")
        return {"module": module, "attribute": attribute}

    def _gates(self, node: Node) -> List[Plain]:
        found = [self._located(item) for item in node.items()]
        if not found or any("*" in each["module"] + each["attribute"] for each in found):
            node.fail("the gate needs functions, each written like 'package.module:Class.method'")
        return found

    # Patches and their rows.

    def _patch(self, name: str, node: Node) -> Plain:
        node.matching(r"[a-z]\w*\.[a-z]\w*", "not a patch id; write it like 'toolkit.fix', in lower case", name)
        entry = node.record(
            {
                "toolkit": lambda one: one.known(self._names, "toolkit"),
                "problem": Node.one_line,
                "evidence": Node.texts,
                "rows": lambda one: one,
            },
            {
                "code": kinds.code,
                "setting": lambda one: one.known([setting.name for setting in SETTINGS], "setting"),
                "when": lambda one: one,
                "default": lambda one: one.known(("on", "off"), "default"),
                **dict.fromkeys(("needs", "also", "after"), Node.texts),
                "instead": lambda one: one,
                "examined": lambda one: {key: kinds.hashes(item) for key, item in one.mapping().items()},
                "moment": lambda one: one.known(("import", "gate"), "moment"),
                "probe": kinds.code,
                "does": Node.text,
            },
        )
        patch: Plain = {
            **dict.fromkeys(("code", "probe", "does"), ""),
            **{key: [] for key in ("needs", "also", "after")},
            **{key: {} for key in ("instead", "examined")},
            "setting": None,
            **entry,
            "id": name,
            "when": kinds.when(entry["when"], entry.get("setting")) if "when" in entry else [],
            "default": entry.get("default", "on") == "on",
            "gated": entry.pop("moment", "") == "gate",
        }
        patch.pop("moment", None)
        if "instead" in entry:
            patch["instead"] = kinds.instead(entry["instead"], patch["when"])
        patch["rows"] = self._rows(entry["rows"], patch)
        if not patch["code"] and any(row["status"] == CURED for row in patch["rows"]):
            node.fail(f"code missing: patch {name!r} has a row with status {CURED}")
        return patch

    def _rows(self, node: Node, patch: Plain) -> List[Plain]:
        """Return the rows in the file's order, which is that of the versions: each ends where the next one begins."""
        items = node.items()
        if not items:
            node.fail(f"patch {patch['id']!r} has no row")
        entries = [item.mapping(("why",), _ROW) for item in items]
        _ascending(items, entries, patch["id"])
        rows = []
        for item, entry, following in zip(items, entries, [*entries[1:], {}]):
            begins_at = entry["from"].text() if "from" in entry else None
            end_node = entry["to"] if "to" in entry else following["from"]
            if Range(begins_at, end_node.text()).is_empty():
                first = "" if begins_at is None else f">={begins_at},"
                entry.get("from", end_node).fail(f"no version can satisfy '{first}<{end_node.text()}'")
            status = entry["status"].known(_STATUSES, "status") if "status" in entry else CURED
            targets = [self._target(each, patch) for each in entry["targets"].items()] if "targets" in entry else []
            if status == CURED and not targets:
                item.fail(f"a row with status {CURED} needs targets, with at least one entry")
            rests_on = [self._at(each, patch) for each in entry["rests_on"].items()] if "rests_on" in entry else []
            rows.append(
                {
                    "versions": [begins_at, end_node.text()],
                    "status": status,
                    "targets": targets,
                    "tested": [],
                    "why": entry["why"].one_line(),
                    "rests_on": [f"{each['module']}:{each['attribute']}" for each in rests_on],
                    "also": entry["also"].texts() if "also" in entry else [],
                }
            )
        return rows

    def _target(self, node: Node, patch: Plain) -> Plain:
        if node.is_plain:
            return self._at(node, patch)
        entry = node.record(
            {"at": lambda one: self._at(one, patch)},
            {
                "expects": Node.texts,
                "moment": lambda one: one.known(("before", "after"), "moment"),
                "call": lambda one: kinds.call(one, patch),
            },
        )
        found = {**entry.pop("at"), **entry}
        if found.pop("moment", "") == "before":
            if found["attribute"] != "*":
                node.fail("what is about to be executed has nothing in it yet; write it like 'package.module:*'")
            found["before"] = True
        return found

    def _at(self, node: Node, patch: Plain) -> Plain:
        """Return a target that is written out, or a place of the patch's toolkit, or of torch, which all use."""
        name = node.text()
        if ":" in name:
            return self._located(node)
        known = {**self._places.get("torch", {}), **self._places.get(patch["toolkit"], {})}
        if name not in known:
            accepted = ", ".join([*known, "a target like 'package.module:Class.method'"])
            node.fail(f"{name!r} is no place of {patch['toolkit']}; expected {accepted}")
        return known[name]

    # What is generated.

    def _released(self, node: Node) -> Tuple[Plain, Plain]:
        """Return the hashes of places in tested releases, and the parameters of those that are only wrapped."""
        code: Plain = {}
        parameters: Plain = {}
        for toolkit, entry in node.mapping().items():
            entry.known(self._names, "toolkit", toolkit)
            keys = entry.mapping(("release", "code", "parameters"))
            keys["release"].version()
            code.update({place: kinds.hashes(item) for place, item in keys["code"].mapping().items()})
            parameters.update({place: item.text() for place, item in keys["parameters"].mapping().items()})
        return code, parameters

    def _add_tested(self, node: Node, patches: Mapping[str, Plain]) -> Dict[str, str]:
        """Give each row what was tested of its range; return the newest tested release of each toolkit."""
        newest: Dict[str, str] = {}
        for toolkit, entry in node.mapping().items():
            entry.known(self._names, "toolkit", toolkit)
            keys = entry.mapping(("versions",), ("except",))
            versions = keys["versions"].versions()
            newest[self._names[toolkit]] = str(max(versions))
            own = {name: patch for name, patch in patches.items() if patch["toolkit"] == toolkit}
            left_out: Dict[str, FrozenSet[Version]] = {}
            for name, item in keys["except"].mapping().items() if "except" in keys else ():
                left_out[item.known(own, f"patch of {toolkit}", name)] = frozenset(item.versions())
            for name, patch in own.items():
                for row in patch["rows"]:
                    held = within(Range(*row["versions"]), versions) if row["status"] == CURED else []
                    row["tested"] = [str(version) for version in held if version not in left_out.get(name, ())]
        # The packages of one distribution have its releases.
        return {name: newest[wheel] for name, wheel in self._names.items() if wheel in newest}


def _check(nodes: Mapping[str, Node], patches: Mapping[str, Plain]) -> None:
    """Each patch has a variable that stands for nothing else, and what it needs is there, and needs nothing itself."""
    taken = {setting.variable: f"the setting {setting.name!r}" for setting in SETTINGS}
    for name, patch in patches.items():
        variable = switch_name(name)
        if variable in taken:
            nodes[name].fail(f"patch {name!r} would be switched by {variable}, which stands for {taken[variable]}")
        taken[variable] = f"patch {name!r}"
        known = [other for other in patches if other != name and not patches[other]["needs"]]
        for need in patch["needs"]:
            if need not in known:
                nodes[name].fail(f"patch {name!r} cannot need {need!r}; expected {', '.join(known)}")
        for other in patch["after"]:
            if other not in patches:
                nodes[name].fail(f"patch {name!r} cannot be after {other!r}; expected {', '.join(sorted(patches))}")


def _ascending(items: Sequence[Node], entries: Sequence[Dict[str, Node]], patch: str) -> None:
    """Refuse rows of a patch that leave a version without a row, or give it two."""
    begins, ends = ([kinds.bound(entry[key]) if key in entry else None for entry in entries] for key in ("from", "to"))
    for number, (item, begin) in enumerate(zip(items[1:], begins[1:])):
        before, end = begins[number], ends[number]
        if begin is None:
            item.fail("from missing; only the first row of a patch may begin without one")
        if (before is not None and begin <= before) or (end is not None and begin < end):
            twice = before if before is not None and begin <= before else begin
            entries[number + 1]["from"].fail(
                f"version {twice} of patch {patch} is claimed by this row and by the row in line"
                f" {items[number].line}; rows ascend, so that every version needs exactly one row"
            )
    if ends[-1] is None:
        items[-1].fail("to missing: the last row of a patch says where it ends, write it like to: '5.24'")


def _order(nodes: Mapping[str, Node], patches: Mapping[str, Plain]) -> List[str]:
    """Return the ids in the order in which patches are put in place: by ``after``, else by the alphabet."""
    found: List[str] = []
    waiting = sorted(patches)
    while waiting:
        ready = next((name for name in waiting if set(patches[name]["after"]) <= set(found)), None)
        if ready is None:
            nodes[waiting[0]].fail(f"these patches are each after another one of them: {', '.join(waiting)}")
        found.append(ready)
        waiting.remove(ready)
    return found
