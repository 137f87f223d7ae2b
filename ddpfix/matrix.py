"""The compatibility matrix: reading and validating ``compat_matrix.yaml``.

The file is the only place that says which patch is for which versions. Every error names the file, the line and what
is accepted there. The file is data: it names patches that the package ships, never code to import.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Dict, List, Mapping, NoReturn, Optional, Sequence, Tuple

import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from ddpfix.settings import SETTINGS, switch_name
from ddpfix.specifiers import holds, meet

STATUSES = ("cured", "not-cured", "not-affected")
_CODE = re.compile(r"^[a-z_]\w*(\.[a-z_]\w*)*:[a-z_]\w*$")
_ID = re.compile(r"^[a-z]\w*\.[a-z]\w*$")
_FILE = re.compile(r"^\w[\w.-]*$")
_TARGET = re.compile(r"^[A-Za-z_]\w*(\.[\w*]+)*:(\*|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)$")


# libyaml's loader, where PyYAML was built with it, takes a tenth of the time.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_OPENING = (
    yaml.BlockMappingStartToken,
    yaml.BlockSequenceStartToken,
    yaml.FlowMappingStartToken,
    yaml.FlowSequenceStartToken,
)
_CLOSING = (yaml.BlockEndToken, yaml.FlowMappingEndToken, yaml.FlowSequenceEndToken)


class MatrixError(ValueError):
    """The matrix cannot be used; the message starts with file and line."""


@dataclass(frozen=True)
class Target:
    """What a patch is put on: a module (``*`` stands for one name), an attribute in it, and its expected parameters."""

    module: str
    attribute: str
    expects: Tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.module}:{self.attribute}"


@dataclass(frozen=True)
class Patch:
    """One cure: which code does it, what it is for, and the setting (with its values) that calls for it."""

    id: str
    toolkit: str
    code: str
    setting: Optional[str]
    when: Tuple[str, ...]
    problem: str
    evidence: Tuple[str, ...]
    # Whether it is applied without being asked for; the others wait for DDPFIX_<PATCH>=1.
    default: bool = True


@dataclass(frozen=True)
class Row:
    """One line of the matrix: for these versions, this is done (or not done) for this reason."""

    patch: str
    versions: SpecifierSet
    torch: Optional[SpecifierSet]
    status: str
    targets: Tuple[Target, ...]
    tested: Tuple[Version, ...]
    why: str
    line: int


@dataclass(frozen=True)
class Matrix:
    """The whole file: distribution names by toolkit, patches by id, and the rows in the file's order.

    ``version_files`` has, for toolkits that ship one, the file in the package that tells its version: a clone in front
    of the installed wheel is what is imported, and the metadata is the wheel's.
    """

    toolkits: Mapping[str, str]
    patches: Mapping[str, Patch]
    rows: Tuple[Row, ...]
    version_files: Mapping[str, str] = field(default_factory=dict)

    def rows_of(self, patch: str) -> List[Row]:
        return [row for row in self.rows if row.patch == patch]


def default_path() -> Path:
    """The matrix of the installed package, or the one of the checkout."""
    installed = Path(__file__).with_name("compat_matrix.yaml")
    return installed if installed.exists() else Path(__file__).parent.parent / "compat_matrix.yaml"


@lru_cache(maxsize=4)
def _load_cached(path: str, stamp: float, thorough: bool) -> Matrix:
    return _Reader(Path(path), thorough).matrix()


def load(path: Optional[Path] = None, thorough: bool = True) -> Matrix:
    """Read and validate the matrix.

    Args:
        path: another file than the package's own.
        thorough: whether rows are held against each other and against patches/, and the file against attacks. The
            package's own file was, before it was shipped, and every process that trains reads it.

    Raises:
        MatrixError: the file is missing, is not YAML, or does not follow the schema.
    """
    path = path or default_path()
    try:
        stamp = path.stat().st_mtime
    except OSError as error:
        raise MatrixError(f"{path}:1: cannot be read ({error.strerror}); reinstall ddpfix") from None
    return _load_cached(str(path), stamp, thorough)


def _patches() -> Path:
    """The folder of the patches: in the installed package, or beside it in a checkout."""
    here = Path(__file__).parent / "patches"
    return here if here.is_dir() else Path(__file__).parent.parent / "patches"


def _shipped(code: str) -> bool:
    """Whether patches/ has this function. Only names below ddpfix.patches can be asked for, and nothing is imported."""
    if not _CODE.match(code):
        return False
    module, _, function = code.partition(":")
    file = _patches().joinpath(*module.split(".")).with_suffix(".py")
    return file.is_file() and f"\ndef {function}(" in file.read_text(encoding="utf-8")


class _Node:
    """A YAML node that knows its line. Only mappings, sequences and plain scalars are accepted."""

    def __init__(self, node: yaml.Node, path: Path, key: Optional[yaml.Node] = None) -> None:
        self.node = node
        self.path = path
        # A value below its key is looked for in the key's line.
        self.line = int((key or node).start_mark.line) + 1

    def fail(self, message: str) -> NoReturn:
        raise MatrixError(f"{self.path}:{self.line}: {message}")

    def mapping(self, required: Sequence[str] = (), optional: Optional[Sequence[str]] = ()) -> Dict[str, _Node]:
        """The entries; ``optional=None`` accepts any key."""
        if not isinstance(self.node, yaml.MappingNode):
            self.fail("a mapping is expected here")
        found: Dict[str, _Node] = {}
        for key_node, value_node in self.node.value:
            key = _Node(key_node, self.path)
            name = key.text()
            if name in found:
                key.fail(f"{name!r} stands twice in this mapping")
            if optional is not None and name not in required and name not in optional:
                key.fail(f"{name!r} is not known; accepted are {', '.join([*required, *optional])}")
            found[name] = _Node(value_node, self.path, key_node)
        missing = [name for name in required if name not in found]
        if missing:
            self.fail(f"{', '.join(missing)} missing")
        return found

    def items(self) -> List[_Node]:
        if not isinstance(self.node, yaml.SequenceNode):
            self.fail("a list is expected here")
        return [_Node(item, self.path) for item in self.node.value]

    def text(self) -> str:
        if not isinstance(self.node, yaml.ScalarNode):
            self.fail("a plain value is expected here")
        # A float is refused because other readers of this file would see 4.1 where 4.10 is written.
        if self.node.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:int"):
            self.fail(f"a text is expected here, not {self.node.tag.rsplit(':', 1)[-1]} (put it in quotes)")
        text = str(self.node.value).strip()
        if not text:
            self.fail("a text is expected here, and this one is empty")
        return text

    def texts(self) -> Tuple[str, ...]:
        return tuple(item.text() for item in self.items())

    def choice(self, accepted: Sequence[str], what: str) -> str:
        word = self.text()
        if word not in accepted:
            self.fail(f"{what} {word!r} is not known; accepted are {', '.join(accepted)}")
        return word

    def specifier(self) -> SpecifierSet:
        text = self.text()
        try:
            specifier = SpecifierSet(text)
        except InvalidSpecifier:
            self.fail(f"{text!r} is not a version specifier; write it like '>=4.21,<5.24'")
        if any(clause.operator == "===" for clause in specifier):
            self.fail(f"{text!r} compares texts; write == instead of ===")
        if meet(specifier, specifier) is None:
            self.fail(f"no version can satisfy {text!r}")
        return specifier

    def version(self) -> Version:
        try:
            return Version(self.text())
        except InvalidVersion:
            self.fail(f"{self.text()!r} is not a version; write it like '4.57.6'")


class _Reader:
    def __init__(self, path: Path, thorough: bool = True) -> None:
        self.path, self.thorough = path, thorough

    def matrix(self) -> Matrix:
        if not _patches().is_dir():
            raise MatrixError(f"{self.path}:1: there are no patches beside it; reinstall ddpfix")
        top = self._root().mapping(required=("schema", "toolkits", "patches", "rows"))
        top["schema"].choice(("1",), "schema")
        toolkits, files = self._toolkits(top["toolkits"])
        if "torch" not in toolkits:
            top["toolkits"].fail("the toolkit 'torch' is missing")
        patches = {
            name: self._patch(name, node, toolkits) for name, node in top["patches"].mapping(optional=None).items()
        }
        nodes = top["rows"].items()
        self._refuse_shared_variables(top["patches"], patches)
        rows = tuple(self._row(node, patches, toolkits) for node in nodes)
        if self.thorough:
            self._refuse_overlaps(rows, patches)
        for name in patches:
            if not any(row.patch == name for row in rows):
                top["patches"].mapping(optional=None)[name].fail(f"patch {name!r} has no row")
        return Matrix(toolkits, patches, rows, files)

    def _toolkits(self, node: _Node) -> Tuple[Dict[str, str], Dict[str, str]]:
        """Distribution names, and version files of the toolkits that have one."""
        names: Dict[str, str] = {}
        files: Dict[str, str] = {}
        for name, entry in node.mapping(optional=None).items():
            if isinstance(entry.node, yaml.ScalarNode):
                names[name] = entry.text()
                continue
            both = entry.mapping(required=("distribution", "version_file"))
            names[name], files[name] = both["distribution"].text(), both["version_file"].text()
            if not _FILE.match(files[name]):
                both["version_file"].fail(f"{files[name]!r} is not the name of a file in the package")
        return names, files

    def _root(self) -> _Node:
        try:
            text = self.path.read_text(encoding="utf-8")
            if self.thorough:
                self._refuse_hostile(text)
            root = yaml.compose(text, Loader=_LOADER)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark is not None else 1
            raise MatrixError(f"{self.path}:{line}: not valid YAML: {error.problem or error.context}") from None
        except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
            if isinstance(error, MatrixError):
                raise
            raise MatrixError(f"{self.path}:1: cannot be read as YAML in UTF-8: {error}") from None
        if root is None:
            raise MatrixError(f"{self.path}:1: the file is empty; expected are schema, toolkits, patches, rows")
        return _Node(root, self.path)

    def _refuse_hostile(self, text: str) -> None:
        """An alias can blow up a small file, a tag can ask for code, and deep nesting can end the process."""
        depth = 0
        for token in yaml.scan(text, Loader=_LOADER):
            depth += isinstance(token, _OPENING)
            depth -= isinstance(token, _CLOSING)
            line = token.start_mark.line + 1
            if isinstance(token, (yaml.AliasToken, yaml.AnchorToken, yaml.TagToken)):
                raise MatrixError(f"{self.path}:{line}: anchors, aliases and tags are not accepted here")
            if depth > 20:
                raise MatrixError(f"{self.path}:{line}: nested too deeply; the schema needs five levels")

    def _patch(self, name: str, node: _Node, toolkits: Mapping[str, str]) -> Patch:
        if not _ID.match(name):
            node.fail(f"{name!r} is not a patch id; write it like 'toolkit.cure', in lower case")
        entry = node.mapping(
            required=("toolkit", "code", "problem", "evidence"), optional=("setting", "when", "default")
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
        )

    def _refuse_shared_variables(self, node: _Node, patches: Mapping[str, Patch]) -> None:
        """Each patch is switched by a variable that stands for nothing else."""
        taken = {setting.variable: f"the setting {setting.name!r}" for setting in SETTINGS}
        for name in patches:
            variable = switch_name(name)
            if variable in taken:
                node.mapping(optional=None)[name].fail(
                    f"patch {name!r} would be switched by {variable}, which stands for {taken[variable]}"
                )
            taken[variable] = f"patch {name!r}"

    def _row(self, node: _Node, patches: Mapping[str, Patch], toolkits: Mapping[str, str]) -> Row:
        entry = node.mapping(required=("patch", "versions", "why"), optional=("torch", "status", "targets", "tested"))
        status = entry["status"].choice(STATUSES, "status") if "status" in entry else "cured"
        if status == "cured" and not all(name in entry and entry[name].items() for name in ("targets", "tested")):
            node.fail("a row with status cured needs targets and tested, with at least one entry each")
        versions = entry["versions"].specifier()
        tested = tuple(item.version() for item in entry["tested"].items()) if "tested" in entry else ()
        for version in tested if self.thorough else ():
            if not holds(versions, version):
                entry["tested"].fail(f"{version} is tested, but {entry['versions'].text()!r} does not contain it")
        return Row(
            patch=entry["patch"].choice(list(patches), "patch"),
            versions=versions,
            torch=entry["torch"].specifier() if "torch" in entry else None,
            status=status,
            targets=tuple(self._target(item, toolkits) for item in entry["targets"].items())
            if "targets" in entry
            else (),
            tested=tuple(sorted(tested)),
            why=" ".join(entry["why"].text().split()),
            line=node.line,
        )

    def _target(self, node: _Node, toolkits: Mapping[str, str]) -> Target:
        if isinstance(node.node, yaml.ScalarNode):
            text, expects = node.text(), ()  # type: str, Tuple[str, ...]
        else:
            entry = node.mapping(required=("at", "expects"))
            text, expects = entry["at"].text(), entry["expects"].texts()
        if not _TARGET.match(text):
            node.fail(f"{text!r} is not a target; write it like 'package.module:Class.method'")
        module, _, attribute = text.partition(":")
        # Only imports of toolkits are watched: a patch on anything else would wait for ever.
        if module.partition(".")[0] not in toolkits:
            node.fail(f"{text!r} is in no toolkit; accepted are {', '.join(toolkits)}")
        return Target(module, attribute, expects)

    def _refuse_overlaps(self, rows: Sequence[Row], patches: Mapping[str, Patch]) -> None:
        for patch in patches:
            same = [row for row in rows if row.patch == patch]
            for index, row in enumerate(same):
                for earlier in same[:index]:
                    clash = _clash(earlier, row)
                    if clash:
                        raise MatrixError(
                            f"{self.path}:{row.line}: version {clash} of patch {patch} is claimed by this row and by"
                            f" the row in line {earlier.line}; every version needs exactly one row"
                        )


def _clash(one: Row, other: Row) -> Optional[str]:
    if one.torch is not None and other.torch is not None and not meet(one.torch, other.torch):
        return None
    meeting = meet(one.versions, other.versions)
    return str(meeting) if meeting is not None else None
