"""Reads and validates ``compat_matrix.yaml``: makes a :class:`~ddpfix.matrix.model.Matrix` of it.

Every error names the file, the line and what is accepted there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, Mapping, Optional, Sequence, Tuple

import yaml

from ddpfix.matrix import places
from ddpfix.matrix.model import Mark, Matrix, MatrixError, Patch, Row, Target
from ddpfix.matrix.settings import SETTINGS, switch_name
from ddpfix.matrix.specifiers import holds, meet
from ddpfix.matrix.yaml_nodes import Node, root

STATUSES = ("cured", "not-cured", "not-affected")
_CODE = re.compile(r"^[a-z_]\w*(\.[a-z_]\w*)*:[a-z_]\w*$")
_ID = re.compile(r"^[a-z]\w*\.[a-z]\w*$")
_FILE = re.compile(r"^\w[\w.-]*$")
_INSIDE = re.compile(r"^\w[\w.-]*(/\w[\w.-]*)*$")
_TARGET = re.compile(r"^[A-Za-z_]\w*(\.[\w*]+)*:(\*|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)$")
_Marks = Dict[str, Tuple[Mark, ...]]


def _toolkits(node: Node) -> Tuple[Dict[str, str], Dict[str, str], _Marks]:
    """Distribution names, version files of the toolkits that have one, and marks of those that are known by them."""
    names: Dict[str, str] = {}
    files: Dict[str, str] = {}
    marks: _Marks = {}
    for name, entry in node.mapping(optional=None).items():
        if isinstance(entry.node, yaml.ScalarNode):
            names[name] = entry.text()
            continue
        found = entry.mapping(required=("distribution",), optional=("version_file", "marks"))
        names[name] = found["distribution"].text()
        if len(found) != 2:
            entry.fail("beside distribution, either version_file or marks is expected")
        if "marks" in found:
            marks[name] = tuple(_mark(item) for item in found["marks"].items())
            continue
        files[name] = found["version_file"].text()
        if not _FILE.match(files[name]):
            found["version_file"].fail(f"{files[name]!r} is not the name of a file in the package")
    return names, files, marks


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
    """A path in the package, of a file or a folder; never one that leads out of it."""
    path = node.text() if path is None else path
    if not _INSIDE.match(path):
        node.fail(f"{path!r} is not a path in the package; write it like 'utils/executor.py'")
    return path


def _shipped(code: str) -> bool:
    """Whether patches/ has this function. Only names below ddpfix.patches can be asked for, and nothing is imported."""
    if not _CODE.match(code):
        return False
    module, _, function = code.partition(":")
    file = places.patches().joinpath(*module.split(".")).with_suffix(".py")
    return file.is_file() and f"\ndef {function}(" in file.read_text(encoding="utf-8")


class Reader:
    """One file; see :func:`ddpfix.matrix.loader.load` for what is left out where it is not ``thorough``."""

    def __init__(self, path: Path, thorough: bool = True) -> None:
        self.path, self.thorough = path, thorough

    def matrix(self) -> Matrix:
        if not places.patches().is_dir():
            raise MatrixError(f"{self.path}:1: there are no patches beside it; reinstall ddpfix")
        top = root(self.path, self.thorough).mapping(required=("schema", "toolkits", "patches", "rows"))
        top["schema"].choice(("1",), "schema")
        toolkits, files, marks = _toolkits(top["toolkits"])
        if "torch" not in toolkits:
            top["toolkits"].fail("the toolkit 'torch' is missing")
        patches = {
            name: self._patch(name, node, toolkits) for name, node in top["patches"].mapping(optional=None).items()
        }
        nodes = top["rows"].items()
        self._refuse_shared_variables(top["patches"], patches)
        self._refuse_unknown_needs(top["patches"], patches)
        rows = tuple(self._row(node, patches, toolkits) for node in nodes)
        if self.thorough:
            self._refuse_overlaps(rows, patches)
        for name in patches:
            if not any(row.patch == name for row in rows):
                top["patches"].mapping(optional=None)[name].fail(f"patch {name!r} has no row")
        return Matrix(toolkits, patches, rows, files, marks)

    def _patch(self, name: str, node: Node, toolkits: Mapping[str, str]) -> Patch:
        if not _ID.match(name):
            node.fail(f"{name!r} is not a patch id; write it like 'toolkit.cure', in lower case")
        entry = node.mapping(
            required=("toolkit", "code", "problem", "evidence"),
            optional=("setting", "when", "default", "needs", "also"),
        )
        code = entry["code"].text()
        if self.thorough and not _shipped(code):
            entry["code"].fail(f"code {code!r} is not shipped; write it like 'toolkit.file:function', in patches/")
        setting, when = None, ()  # type: Optional[str], Tuple[str, ...]
        if "setting" in entry:
            setting = entry["setting"].choice([s.name for s in SETTINGS], "setting")
        if "when" in entry:
            if setting is None:
                entry["when"].fail("when needs a setting beside it")
            values = next((s.values for s in SETTINGS if s.name == setting), ())
            when = tuple(item.choice(values, f"value of {setting}") for item in entry["when"].items())
        return Patch(
            id=name,
            toolkit=entry["toolkit"].choice(list(toolkits), "toolkit"),
            code=code,
            setting=setting,
            when=when,
            problem=" ".join(entry["problem"].text().split()),
            evidence=entry["evidence"].texts(),
            default="default" not in entry or entry["default"].choice(("on", "off"), "default") == "on",
            needs=entry["needs"].texts() if "needs" in entry else (),
            also=entry["also"].texts() if "also" in entry else (),
        )

    def _refuse_shared_variables(self, node: Node, patches: Mapping[str, Patch]) -> None:
        """Each patch is switched by a variable that stands for nothing else."""
        taken = {setting.variable: f"the setting {setting.name!r}" for setting in SETTINGS}
        for name in patches:
            variable = switch_name(name)
            if variable in taken:
                node.mapping(optional=None)[name].fail(
                    f"patch {name!r} would be switched by {variable}, which stands for {taken[variable]}"
                )
            taken[variable] = f"patch {name!r}"

    def _refuse_unknown_needs(self, node: Node, patches: Mapping[str, Patch]) -> None:
        """What a patch needs is there, and needs nothing itself."""
        for name, patch in patches.items():
            for need in patch.needs:
                if need not in patches or need == name or patches[need].needs:
                    known = ", ".join(other for other in patches if other != name and not patches[other].needs)
                    entry = node.mapping(optional=None)[name]
                    entry.fail(f"patch {name!r} cannot need {need!r}; accepted are {known}")

    def _row(self, node: Node, patches: Mapping[str, Patch], toolkits: Mapping[str, str]) -> Row:
        entry = node.mapping(required=("patch", "versions", "why"), optional=("status", "targets", "tested"))
        status = entry["status"].choice(STATUSES, "status") if "status" in entry else "cured"
        if status == "cured" and not all(name in entry and entry[name].items() for name in ("targets", "tested")):
            node.fail("a row with status cured needs targets and tested, with at least one entry each")
        versions = entry["versions"].specifier()
        tested = tuple(item.version() for item in entry["tested"].items()) if "tested" in entry else ()
        for version in tested if self.thorough else ():
            if not holds(versions, version):
                entry["tested"].fail(f"{version} is tested, but {entry['versions'].text()!r} does not contain it")
        patch = entry["patch"].choice(list(patches), "patch")
        return Row(
            patch=patch,
            versions=versions,
            status=status,
            targets=tuple(self._target(item, toolkits, patches[patch]) for item in entry["targets"].items())
            if "targets" in entry
            else (),
            tested=tuple(sorted(tested)),
            why=" ".join(entry["why"].text().split()),
            line=node.line,
        )

    def _target(self, node: Node, toolkits: Mapping[str, str], patch: Patch) -> Target:
        if isinstance(node.node, yaml.ScalarNode):
            entry, text = {"at": node}, node.text()
        else:
            entry = node.mapping(required=("at",), optional=("expects", "moment", "call"))
            if len(entry) == 1:
                node.fail("expects, moment or call missing; a target with none of them is a plain text")
            text = entry["at"].text()
        expects = entry["expects"].texts() if "expects" in entry else ()
        before = "moment" in entry and entry["moment"].choice(("before", "after"), "moment") == "before"
        if not _TARGET.match(text):
            node.fail(f"{text!r} is not a target; write it like 'package.module:Class.method'")
        module, _, attribute = text.partition(":")
        if before and attribute != "*":
            node.fail(f"{text!r} is about to be executed, and has nothing in it yet; write it like 'package.module:*'")
        # Only imports of toolkits are watched: a patch on anything else would wait for ever.
        if module.partition(".")[0] not in toolkits:
            node.fail(f"{text!r} is in no toolkit; accepted are {', '.join(toolkits)}")
        target = Target(module, attribute, expects, before, entry["call"].text() if "call" in entry else None)
        if self.thorough and target.call is not None and not _shipped(patch.function(target)):
            entry["call"].fail(f"{target.call!r} is no function of the file of {patch.code!r}, in patches/")
        return target

    def _refuse_overlaps(self, rows: Sequence[Row], patches: Mapping[str, Patch]) -> None:
        for patch in patches:
            same = [row for row in rows if row.patch == patch]
            for index, row in enumerate(same):
                for earlier in same[:index]:
                    both = clash(earlier, row)
                    if both:
                        raise MatrixError(
                            f"{self.path}:{row.line}: version {both} of patch {patch} is claimed by this row and by"
                            f" the row in line {earlier.line}; every version needs exactly one row"
                        )


def clash(one: Row, other: Row) -> Optional[str]:
    meeting = meet(one.versions, other.versions)
    return str(meeting) if meeting is not None else None
