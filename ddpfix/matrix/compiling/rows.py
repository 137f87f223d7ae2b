"""Reads the rows of one patch: each begins at a version and ends where the next one begins."""

from __future__ import annotations

import re
from typing import Dict, List, Optional, Sequence

import yaml
from packaging.version import Version

from ddpfix.matrix import loader
from ddpfix.matrix.compiling.nodes import Node
from ddpfix.matrix.compiling.toolkits import Toolkits
from ddpfix.matrix.model import Patch, Row, Target
from ddpfix.matrix.ranges import Range

CURED = "cured"
STATUSES = (CURED, "not-cured", "not-affected")
_CODE = re.compile(r"^[a-z_]\w*(\.[a-z_]\w*)*:[a-z_]\w*$")
_Entry = Dict[str, Node]


class Rows:
    """The rows of one patch.

    Args:
        patch: the patch that they belong to.
        toolkits: what targets may name.
    """

    def __init__(self, patch: Patch, toolkits: Toolkits) -> None:
        self.patch, self.toolkits = patch, toolkits

    def read(self, node: Node) -> List[Row]:
        """Return the rows in the file's order, which is that of the versions; raise MatrixError for errors in them."""
        items = node.items()
        if not items:
            node.fail(f"patch {self.patch.id!r} has no row")
        keys = ("from", "to", "status", "targets", "rests_on", "also")
        entries = [item.mapping(required=("why",), optional=keys) for item in items]
        ranges = self._ranges(items, entries)
        return [self._row(*parts) for parts in zip(items, entries, ranges)]

    def _ranges(self, items: Sequence[Node], entries: Sequence[_Entry]) -> List[Range]:
        begins = [_version(entry, "from") for entry in entries]
        ends = [_version(entry, "to") for entry in entries]
        for item, begin in zip(items[1:], begins[1:]):
            if begin is None:
                item.fail("from missing; only the first row of a patch may begin without one")
        if ends[-1] is None:
            items[-1].fail("to missing: the last row of a patch says where it ends, write it like to: '5.24'")
        for number in range(1, len(items)):
            self._refuse_disorder(number, items, entries, begins, ends)
        following = [*entries[1:], {}]
        return [self._range(*row) for row in zip(items, entries, following)]

    def _refuse_disorder(
        self,
        number: int,
        items: Sequence[Node],
        entries: Sequence[_Entry],
        begins: Sequence[Optional[Version]],
        ends: Sequence[Optional[Version]],
    ) -> None:
        """A row begins after the one before it; between the two there may be a gap, marked by ``to``."""
        begin, before, end = begins[number], begins[number - 1], ends[number - 1]
        assert begin is not None
        if before is not None and begin <= before:
            entries[number]["from"].fail(
                f"version {before} of patch {self.patch.id} is claimed by this row and by the row in line"
                f" {items[number - 1].line}; rows ascend, so that every version needs exactly one row"
            )
        if end is not None and end > begin:
            entries[number - 1]["to"].fail(
                f"version {begin} of patch {self.patch.id} is claimed by this row and by the row in line"
                f" {items[number].line}; every version needs exactly one row"
            )
        if end is not None and end == begin:
            entries[number - 1]["to"].fail(
                f"to {end} is where the next row begins, which is so without it; it stands in front of a gap only"
            )

    def _range(self, item: Node, entry: _Entry, following: _Entry) -> Range:
        end = entry["to"] if "to" in entry else following["from"]
        begin = entry["from"].text() if "from" in entry else None
        found = Range(begin, end.text())
        if found.is_empty():
            first = "" if begin is None else f">={begin},"
            entry.get("from", end).fail(f"no version can satisfy '{first}<{end.text()}'")
        return found

    def _row(self, node: Node, entry: _Entry, versions: Range) -> Row:
        status = entry["status"].choice(STATUSES, "status") if "status" in entry else CURED
        targets = entry["targets"].items() if "targets" in entry else []
        if status == CURED and not targets:
            node.fail(f"a row with status {CURED} needs targets, with at least one entry")
        return Row(
            patch=self.patch.id,
            versions=versions,
            status=status,
            targets=tuple(self._target(item) for item in targets),
            tested=(),
            why=" ".join(entry["why"].text().split()),
            line=node.line,
            rests_on=tuple(str(self._at(item)) for item in entry["rests_on"].items()) if "rests_on" in entry else (),
            also=entry["also"].texts() if "also" in entry else (),
        )

    def _target(self, node: Node) -> Target:
        if isinstance(node.node, yaml.ScalarNode):
            return self._at(node)
        entry = node.mapping(required=("at",), optional=("expects", "moment", "call"))
        if len(entry) == 1:
            node.fail("expects, moment or call missing; a target with none of them is a plain text")
        found = self._at(entry["at"])
        if "expects" in entry:
            found = found._replace(expects=entry["expects"].texts())
        if "moment" in entry and entry["moment"].choice(("before", "after"), "moment") == "before":
            if found.attribute != "*":
                node.fail(
                    f"'{found}' is about to be executed, and has nothing in it yet; write it like 'package.module:*'"
                )
            found = found._replace(before=True)
        return found._replace(call=self._call(entry["call"])) if "call" in entry else found

    def _at(self, node: Node) -> Target:
        """Return a place by its name, or one that is written out."""
        written_out = ":" in node.text()
        return Target(*self.toolkits.located(node)) if written_out else self.toolkits.place(self.patch.toolkit, node)

    def _call(self, node: Node) -> str:
        name, file = node.text(), self.patch.code.partition(":")[0]
        if not shipped(f"{file}:{name}"):
            where = f"patches/{file.replace('.', '/')}.py" if file else "the file of the patch's code, which is missing"
            node.fail(f"call {name!r} is not shipped; write the name of a function in {where}")
        return name


def shipped(code: str) -> bool:
    """Return whether patches/ has this function. Only names below ddpfix.patches are accepted; nothing is imported."""
    if not _CODE.match(code):
        return False
    module, _, function = code.partition(":")
    file = loader.patches().joinpath(*module.split(".")).with_suffix(".py")
    return file.is_file() and f"\ndef {function}(" in file.read_text(encoding="utf-8")


def _version(entry: _Entry, key: str) -> Optional[Version]:
    if key not in entry:
        return None
    found = entry[key].version()
    if found.local:
        entry[key].fail(f"{found} has a local part, and a range ends with none; write it like '4.57.6'")
    return found
