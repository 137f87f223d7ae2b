"""The contents of ``compat_matrix.yaml``, as objects.

The file is the only place that says which patch is for which versions. It is data: it names patches that the package
ships, never code to import.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from packaging.version import Version

from ddpfix.matrix.ranges import Range

# Tuples with names: a process that trains makes these classes, and dataclasses take six times as long to make.
_EMPTY: Mapping[str, Any] = MappingProxyType({})


class MatrixError(ValueError):
    """The matrix cannot be used; the message starts with file and line."""


class Target(NamedTuple):
    """What a patch is put on: a module (``*`` stands for one name), an attribute in it, and its expected parameters.

    ``before``: the patch is called when the module is about to be executed, and not when it has been. ``call``: another
    function of the patch's file, which is called here in place of the patch's own.
    """

    module: str
    attribute: str
    expects: Tuple[str, ...] = ()
    before: bool = False
    call: Optional[str] = None

    def __str__(self) -> str:
        return f"{self.module}:{self.attribute}"


class Patch(NamedTuple):
    """One fix: which code does it, what it is for, and the setting (with its values) that calls for it.

    ``code`` is empty where no row has the status cured. ``instead`` has the values of the setting that the toolkit does
    not have, and the ones that are used in their place. ``examined`` has, by a name that the code gives, the hashes of
    the forwards that were read line by line: only of these does it say more than it can see
    (:mod:`ddpfix.patching.source_hash`).
    """

    id: str
    toolkit: str
    code: str
    setting: Optional[str]
    when: Tuple[str, ...]
    problem: str
    evidence: Tuple[str, ...]
    # Whether it is applied by default; the others need DDPFIX_<PATCH>=1.
    default: bool = True
    # Patches without which it would be in place and never called.
    needs: Tuple[str, ...] = ()
    # What it changes beside its targets: places written like targets, and in words what is no attribute of a toolkit.
    also: Tuple[str, ...] = ()
    instead: Mapping[str, str] = _EMPTY
    examined: Mapping[str, Tuple[str, ...]] = _EMPTY
    # Patches that are put in place before it, where both are: their wrappers and hooks lie below its own.
    after: Tuple[str, ...] = ()
    # Whether it is put in place when the gate opens, and not when its target is imported.
    gated: bool = False
    # A function in patches/ that tells whether compiled code behaves as it needs, in a release that was not tested.
    probe: str = ""
    # In a few words, with ddpfix as the subject: "makes all ranks skip the same layers".
    does: str = ""

    def code_at(self, target: Target) -> str:
        """Return the function that is called at a target: ``file:function`` below patches/."""
        file, _, function = self.code.partition(":")
        return f"{file}:{target.call or function}"


class Row(NamedTuple):
    """One row of a patch: for these versions, this is done (or not done) for this reason.

    ``tested`` has the versions of its range on which the patch's tests have passed, according to the results.
    ``rests_on`` has places whose code matters beside: what it wraps and yet relies on, and what it does not change.
    ``also`` has places that the patch changes in these versions, beside its targets and its own ``also``.
    """

    patch: str
    versions: Range
    status: str
    targets: Tuple[Target, ...]
    tested: Tuple[Version, ...]
    why: str
    rests_on: Tuple[str, ...] = ()
    also: Tuple[str, ...] = ()


class Mark(NamedTuple):
    """What a package looks like in one version, for a toolkit whose metadata has no usable version.

    Attributes:
        version: the version that it stands for, where all the rest holds.
        files: paths in the package, of files or folders, that are there.
        no_files: paths that are not there.
        words: (file, words) that stand in a file.
        no_words: (file, words) that do not stand in a file, or there is no such file.
    """

    version: str
    files: Tuple[str, ...] = ()
    no_files: Tuple[str, ...] = ()
    words: Tuple[Tuple[str, str], ...] = ()
    no_words: Tuple[Tuple[str, str], ...] = ()


class Matrix(NamedTuple):
    """The whole file: distribution names by toolkit, patches by id, and the rows of all patches.

    ``version_files`` has, for toolkits that ship one, the file in the package that holds its version: a clone in front
    of the installed wheel is what is imported, and the metadata is the wheel's. ``marks`` are those of toolkits without
    a version: the first one that holds decides, and the metadata does not count. ``order`` is that in which patches are
    put in place: by what stands in ``after``, else by their ids, whatever the order of the file. ``newest`` has the
    newest tested release of a toolkit. ``code`` has the hashes of places in tested releases, that of the newest one
    first, and ``parameters`` those of the functions that fixes only wrap (:mod:`ddpfix.patching.unchanged`).
    """

    toolkits: Mapping[str, str]
    patches: Mapping[str, Patch]
    rows: Sequence[Row]
    version_files: Mapping[str, str] = _EMPTY
    marks: Mapping[str, Tuple[Mark, ...]] = _EMPTY
    # The ids of all patches, in the order in which they are put in place.
    order: Tuple[str, ...] = ()
    # What a program calls before it needs the patches with the moment gate (:mod:`ddpfix.patching.gate`).
    gate: Tuple[Target, ...] = ()
    newest: Mapping[str, str] = _EMPTY
    code: Mapping[str, Tuple[str, ...]] = _EMPTY
    parameters: Mapping[str, str] = _EMPTY

    def in_order(self) -> Tuple[str, ...]:
        """Return the ids of the patches in the order in which they are put in place."""
        return self.order or tuple(sorted(self.patches))

    def rows_of(self, patch: str) -> List[Row]:
        # Compiled rows are found without making objects of all of them.
        of = getattr(self.rows, "of", None)
        return of(patch) if of is not None else [row for row in self.rows if row.patch == patch]
