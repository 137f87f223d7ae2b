"""The cells: one for every release that the matrix names as tested, with what fits it.

A cell is an environment with one release of a toolkit, in which its tests are run. Which releases there are is not told
here: the matrix says it. :data:`FITS` says what goes with a release, and :data:`MORE` has further stacks and releases.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from ddpfix.matrix import loader

TESTS = Path(__file__).resolve().parent.parent
# Has the releases of each toolkit that there are.
RELEASES = TESTS / "unit" / "fixtures" / "decisions.json"
# Toolkits of which each minor release is a cell.
EACH_MINOR = ("torch",)
TOOLS = (
    "pytest",
    "PyYAML",
    "wrapt",
    "packaging",
    "rich",
    "tomli",
    "setuptools",
    "hypothesis",
)
# Arguments of pytest, one tuple a run. Of transformers: every family against upstream, recomputation, outputs, what
# happens where a model is wrapped, and two real ranks; DDP without the flag on an old torch, and FSDP.
FAMILIES = (
    # A family that is new in a release and has no model here fails there.
    "tests/unit/test_zoo.py",
    "tests/layerdrop/test_families.py",
    "tests/layerdrop/test_recompute.py",
    "tests/layerdrop/test_outputs.py",
    "tests/layerdrop/test_wrapping.py",
)
RANKS = (
    "tests/ranks",
    "-k",
    "unpatched_plain or plain_loops or longer or who_else or told_ddp or explicit or time_limits"
    " or rate_set_on or layerdrop_off",
)
LATE, SHARDED = ("tests/late",), ("tests/sharded",)
# Models of no toolkit that skip layers: they need torch alone.
SKIPPING = ("tests/skipping",)
# Of torch besides: the flag, and how ranks begin, end and fail together.
ENDS = (
    "tests/layerdrop/test_wrapping.py",
    "tests/ranks/test_ended.py",
    "tests/ranks/test_failures.py",
    "tests/ranks/test_store_file.py",
)
# What is seen of a run: traces, probes, hangs, the doctor, the errors of DDP.
SEEING = (
    "tests/trace",
    "tests/probing",
    "tests/ranks/test_hang.py",
    "tests/ranks/test_doctor.py",
    "tests/unit/test_store.py::test_on_how_many_ranks_it_is_the_same",
    "tests/unit/test_store.py::test_a_store_that_does_not_answer_is_given_up",
)
# Its launcher, its loop, its batches of different numbers, and where it is when it stands still.
LIGHTNING = ("tests/launchers/test_lines.py", "tests/late/test_uneven.py", "-k", "lightning or lightened")


@dataclass(frozen=True)
class Fit:
    """What goes with some releases of a toolkit."""

    versions: str  # a specifier of the releases
    others: Tuple[str, ...] = ()  # requirements beside the toolkit
    # The torch that is installed; in an environment of pinned requirements, the one that they pin.
    torch: str = "2.13.0"
    python: str = "3.11"  # the interpreter
    tests: Tuple[Tuple[str, ...], ...] = ()  # arguments of pytest, one tuple a run
    # Whether dependencies come from the folder's ``requirements.txt``, and the release is unpacked beside them without
    # its own, so that many releases share an environment.
    pinned: bool = False
    stack: str = ""  # what tells this cell from another one of the same release


def _transformers(versions: str, *others: str) -> Fit:
    return Fit(versions, others, tests=(FAMILIES, RANKS))


# The oldest stack: what CPython 3.8 still runs. NumPy 1.24 has no np.bool any more, for which WavLM asks.
_OLD = ("transformers==4.21.3", "numpy<1.24", "accelerate==0.20.3")
# Interpreters of minor releases; among all cells are those that this package is said to run on.
PYTHONS: Dict[str, Dict[Tuple[int, ...], str]] = {
    "torch": {(2, 2): "3.9", (2, 7): "3.12", (2, 9): "3.13", (2, 11): "3.10"}
}
# What an interpreter could break without ranks; two files are about what is written here, and about these results.
UNIT = ("tests/unit", "--ignore=tests/unit/test_readme.py", "--ignore=tests/unit/test_tested.py")
# The first one that a version meets is taken.
FITS: Dict[str, Tuple[Fit, ...]] = {
    "torch": (
        Fit("<2.1", _OLD, python="3.8", tests=(LATE, RANKS, ENDS, SEEING)),
        # Later ones of accelerate set a device that torch.cpu does not have.
        Fit("<2.2", ("transformers==4.40.2", "accelerate==0.27.2", "numpy<2"), tests=(LATE, RANKS, ENDS, SEEING)),
        Fit("<2.6", ("transformers==4.46.3", "accelerate==1.2.1", "numpy<2"), tests=(LATE, RANKS, ENDS, SEEING)),
        Fit("<2.13", ("transformers==4.57.6", "accelerate==1.10.1"), tests=(LATE, SHARDED, RANKS, ENDS, SEEING)),
        Fit(">=2.13", ("transformers==5.23.0", "accelerate==1.15.0"), tests=(LATE, SHARDED, RANKS, ENDS, SEEING)),
    ),
    "transformers": (
        Fit("<4.30", _OLD[1:], torch="2.0.1", python="3.8", tests=(FAMILIES, RANKS)),
        _transformers("<4.41", "numpy<2", "accelerate==0.27.2"),
        _transformers("<4.46", "numpy<2", "accelerate==1.2.1"),
        # Encoders ask for FSDP from here on.
        Fit("<4.51", ("accelerate==1.2.1",), tests=(FAMILIES, RANKS, SHARDED)),
        Fit("<5", ("accelerate==1.10.1",), tests=(FAMILIES, RANKS, SHARDED)),
        Fit("<5.9", ("accelerate==1.12.0",), tests=(FAMILIES, RANKS, SHARDED)),
        Fit(">=5.9", ("accelerate==1.15.0",), tests=(FAMILIES, RANKS, SHARDED)),
    ),
    "funasr": (Fit("", tests=(("tests/funasr",),), pinned=True),),
    "speechbrain": tuple(
        Fit(versions, (f"transformers=={transformers}",), tests=(("tests/speechbrain",),), pinned=True)
        for versions, transformers in (("<0.5.16", "4.30.2"), ("<1.0.1", "4.35.2"), ("<1.1", "4.46.3"), ("", "4.57.6"))
    ),
    "fastNLP": (Fit("", tests=(("tests/fastnlp",),), pinned=True),),
    # It is built with wheel.
    "deepspeed": (
        Fit("", ("transformers==5.23.0", "accelerate==1.15.0", "wheel==0.48.0"), tests=(("tests/deepspeed",),)),
    ),
    "torchaudio": (Fit("", tests=(("tests/torchaudio",),), pinned=True),),
    "espnet": (
        Fit("<202409", ("typeguard==2.13.3",), tests=(("tests/espnet",),), pinned=True),
        Fit("", ("typeguard==4.6.1",), tests=(("tests/espnet",),), pinned=True),
    ),
    "s3prl": (Fit("", tests=(("tests/s3prl",),), pinned=True),),
    "nemo": (Fit("", tests=(("tests/nemo",),), pinned=True),),
    # On no registry: the tree of the tag comes from TEST_WENET.
    "wenet": (Fit("", ("deepspeed==0.19.8",), tests=(("tests/wenet",),), pinned=True),),
}
# Stacks beside the first one of a release, and releases that the matrix leaves as they are.
MORE: Dict[str, Tuple[Fit, ...]] = {
    "torch": tuple(
        Fit(
            "==2.13.0",
            # Early releases import pkg_resources.
            ("transformers==5.23.0", "accelerate==1.15.0", f"lightning=={version}", "setuptools<81"),
            tests=(LIGHTNING,),
            stack=f"lightning{version}",
        )
        for version in ("2.0.9.post0", "2.3.3", "2.6.6")
    )
    # The newest interpreters.
    + tuple(
        Fit(
            "==2.15.0",
            ("transformers==5.23.0", "accelerate==1.15.0"),
            python=python,
            tests=(UNIT, LATE, SHARDED, RANKS, ENDS, SEEING),
            stack=f"python{python}",
        )
        for python in ("3.14", "3.15")
    )
    + tuple(
        Fit(f"=={version}", (numpy,), python=python, tests=(SKIPPING,), stack="layers")
        for python, numpy, versions in (
            ("3.8", "numpy<1.25", ("2.0.1",)),
            ("3.11", "numpy<2", ("2.1.2", "2.2.2", "2.3.1", "2.4.1", "2.5.1")),
            ("3.11", "numpy", ("2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0")),
            ("3.13", "numpy", ("2.14.1", "2.15.0")),
        )
        for version in versions
    ),
    # Where a row of accelerate ends and the next one begins.
    "transformers": tuple(
        Fit("==4.42.4", ("numpy<2", f"accelerate=={version}"), tests=(RANKS,), stack=f"accelerate{version}")
        for version in ("0.30.1", "0.31.0")
    ),
    "funasr": (
        # What the users of the reports have.
        Fit(
            "==1.0.19",
            ("torchaudio==2.0.2", "numpy<2", "hydra-core==1.3.2", "setuptools<70", "jieba", "modelscope"),
            torch="2.0.1",
            python="3.8",
            tests=(("tests/funasr",),),
            stack="torch2.0.1",
        ),
    ),
    "speechbrain": (
        Fit("==1.1.2", ("transformers==5.23.0",), tests=(("tests/speechbrain",),), pinned=True, stack="transformers5"),
    ),
    "fastNLP": tuple(
        Fit(f"=={version}", tests=(("tests/fastnlp",),), pinned=True) for version in ("0.5.0", "0.5.5", "0.6.0")
    ),
}


@dataclass(frozen=True)
class Cell:
    """One environment: a release of a toolkit, what fits it, and the tests that are run in it."""

    toolkit: str
    version: str
    fit: Fit

    @property
    def name(self) -> str:
        return "-".join(filter(None, (self.toolkit, self.version, self.fit.stack)))

    @property
    def folder(self) -> str:
        """The folder of its tests, if the toolkit has one of its own."""
        return self.toolkit.lower()

    @property
    def requirement(self) -> str:
        """The release, as it is called on the registry."""
        return f"{loader.load().toolkits[self.toolkit]}=={self.version}"

    @property
    def requirements(self) -> Optional[Path]:
        return TESTS / self.folder / "requirements.txt" if self.fit.pinned else None

    def packages(self) -> List[str]:
        """What is installed into its environment, as arguments of ``uv pip install``."""
        if self.requirements is not None:
            return ["-r", str(self.requirements), *self.fit.others]
        # A list without repetitions: torch may be the toolkit.
        own = dict.fromkeys((f"torch=={self.fit.torch}", self.requirement))
        if self.toolkit == "torch":
            own = dict.fromkeys((f"torch=={self.version}",))
        return [*own, *self.fit.others, *TOOLS]

    @property
    def environment(self) -> str:
        """The name of its environment's folder; cells with the same packages share it."""
        digest = hashlib.sha256(" ".join(sorted(self.packages())).encode()).hexdigest()[:8]
        pinned = self.folder if self.fit.python == "3.11" else f"{self.folder}-py{self.fit.python}"
        return f"{pinned if self.fit.pinned else 'py' + self.fit.python}-{digest}"


def fitting(toolkit: str, version: str) -> Fit:
    """What goes with a release; for one that nobody has tested yet as well."""
    found = next(fit for fit in FITS[toolkit] if SpecifierSet(fit.versions).contains(version, prereleases=True))
    python = PYTHONS.get(toolkit, {}).get(Version(version).release[:2])
    return found if python is None else replace(found, python=python)


@lru_cache(maxsize=None)
def cells() -> Tuple[Cell, ...]:
    """Every release that the matrix names as tested, by toolkit and version, with further stacks behind.

    Of torch also the newest of each minor release that a row cures, whether it has been tested or not.
    """
    found: List[Cell] = []
    for toolkit in FITS:
        versions = sorted({*tested(toolkit), *(minors(toolkit) if toolkit in EACH_MINOR else ())})
        found += [Cell(toolkit, str(version), fitting(toolkit, str(version))) for version in versions]
        found += [Cell(toolkit, fit.versions[2:], fit) for fit in MORE.get(toolkit, ())]
    return tuple(found)


def tested(toolkit: str) -> List[Version]:
    """The releases that some row of a toolkit's patches names as tested."""
    whole = loader.load()
    rows = (row for row in whole.rows if whole.patches[row.patch].toolkit == toolkit)
    return sorted({version for row in rows for version in row.tested})


def minors(toolkit: str) -> List[Version]:
    """The newest patch release of each minor release that some row of a toolkit cures."""
    known = json.loads(RELEASES.read_text(encoding="utf-8"))["versions"][toolkit]
    whole, newest = loader.load(), {}
    ranges = [
        row.versions for row in whole.rows if row.status == "cured" and whole.patches[row.patch].toolkit == toolkit
    ]
    for version in sorted(map(Version, known)):
        # Beside the releases it has what compares in a special way, such as post-releases of a range's end.
        plain = not (version.is_prerelease or version.is_postrelease or version.local)
        if plain and any(each.holds(version) for each in ranges):
            newest[version.release[:2]] = version
    return sorted(newest.values())


def chosen(names: Sequence[str]) -> List[Cell]:
    """The cells of these names or toolkits, or all.

    ``toolkit-version`` of a release that the matrix does not name yet is a cell, too, so that it can be tried.

    Raises:
        ValueError: a name is none of these; the message has what there is.
    """
    known: Dict[str, List[Cell]] = {}
    for cell in cells():
        known.setdefault(cell.toolkit, []).append(cell)
        known[cell.name] = [cell]
    for name in names:
        toolkit, _, version = name.partition("-")
        if name not in known and toolkit in FITS and _is_version(version):
            known[name] = [Cell(toolkit, version, fitting(toolkit, version))]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"no cell {', '.join(unknown)}; there are {', '.join(known)}")
    found = [cell for name in names for cell in known[name]] if names else list(cells())
    return list(dict.fromkeys(found))


def turn(cell: Cell) -> int:
    """The place of a cell's release among those of its toolkit, which differs by one from that of its neighbours."""
    others = {Version(other.version) for other in cells() if other.toolkit == cell.toolkit}
    return sum(other < Version(cell.version) for other in others)


def grouped(cells: Sequence[Cell]) -> List[Cell]:
    """The same cells, those that share an environment together, so that it is made once where it is removed again."""
    turns = list(dict.fromkeys(cell.environment for cell in cells))
    return sorted(cells, key=lambda cell: turns.index(cell.environment))


def _is_version(word: str) -> bool:
    try:
        Version(word)
    except InvalidVersion:
        return False
    return True
