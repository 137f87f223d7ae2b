"""Resolution: one decision a patch for every installed version, without importing or changing anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Tuple

import pytest
from packaging.version import Version

from ddpfix.matrix import detect, loader, resolve, untested
from ddpfix.matrix.model import Matrix, Patch, Row, Target
from ddpfix.matrix.ranges import Range
from ddpfix.matrix.resolve import Decision
from ddpfix.settings.reading import Settings, read, switch_name
from ddpfix.state import State
from tests.support import decisions
from tests.support.compiled import ROOT

TARGET = (Target("kit.module", "function"),)


def row(versions: str, tested: str = "", status: str = "cured", patch: str = "kit.fix") -> Row:
    known = tuple(Version(text) for text in tested.split())
    clauses = {clause[: -len(clause.lstrip("<>="))]: clause.lstrip("<>=") for clause in versions.split(",")}
    return Row(patch, Range(clauses.get(">="), clauses.get("<", "9999")), status, TARGET, known, f"why {versions}")


def matrix_of(*rows: Row, when: Tuple[str, ...] = (), setting: Optional[str] = None) -> Matrix:
    patches = {r.patch: Patch(r.patch, "kit", "kit:fix", setting, when, "problem", ()) for r in rows}
    return Matrix({"torch": "torch", "kit": "kit"}, patches, rows)


def settings_of(arguments: Optional[Mapping[str, object]] = None, **environ: str) -> Settings:
    return read(arguments or {}, ["kit.fix"], environ)


def decide(whole: Matrix, version: Optional[str], torch: Optional[str] = "2.13.0", **environ: str) -> Decision:
    (decision,) = resolve.resolve(whole, {"kit": version, "torch": torch}, settings_of(None, **environ))
    return decision


FIX = matrix_of(
    row(">=1.0,<1.5", "1.0.2 1.4.0"),
    row(">=1.5,<2.0", "1.5.0 1.9.3"),
    row(">=0.9,<1.0", status="not-affected"),
    row("<0.9", status="not-cured"),
)
NEW = FIX._replace(newest={"kit": "1.9.3"})


@pytest.mark.parametrize(
    ("version", "tested"),
    [
        ("1.4.0", True),
        ("1.4", True),
        ("1.4.0+cpu", True),
        ("1.4.0+cu121", True),
        ("1.4.1", False),
        ("1.4.0rc1", False),
        ("1.4.0.dev20240101", False),
        ("1.4.0.post1", False),
    ],
)
def test_tested_means_that_this_release_was_run(version: str, tested: bool) -> None:
    decision = decide(FIX, version)
    assert (decision.action, decision.tested, decision.forced) == (State.APPLY, tested, False)
    assert decision.row is FIX.rows[0] and (decision.reason == "why >=1.0,<1.5") == tested
    # A candidate at a boundary is before 1.5, and "<1.5" leaves it out as well: there is no decision about it.
    assert decide(FIX, "1.5.0rc1").action == State.SKIP


def test_a_release_of_an_unknown_major_version_is_left_as_it_is() -> None:
    for version in ("2.0.1", "10.0", "2.0.0rc1", "0.1"):
        whole = NEW if version != "0.1" else matrix_of(row(">=1.0,<1.5", "1.0.2 1.4.0"))
        nearest = "1.9.3" if version != "0.1" else "1.0.2"
        decision = decide(whole, version)
        assert (decision.action, decision.row, decision.nearest) == (State.SKIP, None, nearest)
        left = f"kit {version} was not tested (nearest: {nearest}): left unchanged; DDPFIX_KIT_FIX=force applies it"
        assert decision.reason == left


def test_the_nearest_in_a_gap_is_the_older_one() -> None:
    gap = matrix_of(row("<1.5", "1.0 1.4.2"), row(">=1.9", "1.9.0 2.0"))
    assert decide(gap, "1.6.0").action == decide(gap, "1.8.0").action == State.SKIP
    assert decide(gap, "1.6.0").nearest == decide(gap, "1.8.0").nearest == "1.4.2"
    assert decide(gap, "1.8.0", DDPFIX_KIT_FIX="force").row is gap.rows[0]


@pytest.mark.parametrize("version", ["1.9.4", "1.9.3.post1", "1.10.0", "1.99", "1.10.0.dev20261101+cpu", "1.11rc1"])
def test_a_newer_release_is_taken_where_its_places_are_unchanged(version: str) -> None:
    """A minor or a patch release, a candidate or a nightly, inside of the last row and behind it."""
    decision = decide(NEW, version)
    assert (decision.action, decision.how, decision.tested) == (State.APPLY, resolve.UNCHANGED, False)
    assert (decision.row, decision.nearest) == (NEW.rows[1], "1.9.3")
    assert resolve.newer(NEW, {"kit": version, "torch": None}) == {"kit"}
    assert decide(NEW, version, DDPFIX_UNTESTED="off").action == State.SKIP
    forced = decide(NEW, version, DDPFIX_UNTESTED="off", DDPFIX_KIT_FIX="force")
    assert (forced.action, forced.forced, forced.row) == (State.APPLY, True, NEW.rows[1])


def test_a_year_is_no_major_version() -> None:
    years = matrix_of(row("<202512", "202211 202511"))._replace(newest={"kit": "202511"})
    assert decide(years, "202607").how == resolve.UNCHANGED and decide(years, "202506").how == resolve.UNCHANGED


def test_a_release_between_tested_ones_is_taken_by_its_row() -> None:
    decision = decide(NEW, "1.4.1")
    assert (decision.action, decision.how, decision.row) == (State.APPLY, resolve.UNCHANGED, NEW.rows[0])
    assert decision.nearest == "1.4.0"
    off = decide(NEW, "1.4.1", DDPFIX_UNTESTED="off")
    assert off.action == State.SKIP and "left unchanged by DDPFIX_UNTESTED=off" in off.reason
    assert resolve.newer(NEW, {"kit": "1.4.1"}) == resolve.newer(NEW, {"kit": "(unrecognised)"}) == frozenset()


def test_what_the_newest_release_no_longer_needs_is_no_fix_of_a_newer_one() -> None:
    mended = matrix_of(row("<1.5", "1.0 1.4.2"), row(">=1.5,<2", status="not-affected"))
    assert decide(mended._replace(newest={"kit": "1.9"}), "1.10").action == State.NOT_AFFECTED
    ended = matrix_of(row("<1.5", "1.0 1.4.2"))._replace(newest={"kit": "1.9"})
    assert decide(ended, "1.10").action == State.SKIP


@pytest.mark.parametrize(
    ("version", "wish", "told"),
    [
        ("1.10", "unchanged", "1 fix is applied where the code is unchanged there"),
        ("1.10", "off", "1 fix is left out; pip install 'kit==1.9.3' enables it"),
        ("2.0.1", "unchanged", "1 fix is left out; pip install 'kit==1.9.3' enables it"),
        ("1.4.0", "off", None),
        ("1.4.1", "unchanged", "1 fix is applied where the code is unchanged there"),
    ],
)
def test_one_line_about_a_release_that_was_not_tested(version: str, wish: str, told: Optional[str]) -> None:
    text = untested.line(NEW, "kit", [decide(NEW, version, DDPFIX_UNTESTED=wish)])
    assert text == (
        told and f"kit {version} was not tested (nearest: {'1.4.0' if version == '1.4.1' else '1.9.3'}): {told}"
    )


@pytest.mark.parametrize(
    ("environ", "words", "is_child", "told"),
    [
        ({"WORLD_SIZE": "2"}, "python train.py", False, True),
        ({"SLURM_NTASKS": "4"}, "python train.py", False, True),
        ({"WORLD_SIZE": "1"}, "python train.py", False, False),
        ({"WORLD_SIZE": "many"}, "python train.py", False, False),
        ({"WORLD_SIZE": "2"}, "python -m torch.distributed.run", False, False),
        ({"WORLD_SIZE": "2"}, "python train.py", True, False),
    ],
)
def test_torchs_release_is_said_by_ranks(
    environ: Dict[str, str], words: str, is_child: bool, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in untested._SIZES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "orig_argv", words.split(), raising=False)
    monkeypatch.setattr("multiprocessing.process.parent_process", lambda: "a parent" if is_child else None)
    assert untested.is_told_of_torch() is told


def test_force_applies_the_row_of_the_neighbour_and_changes_nothing_inside() -> None:
    decision = decide(FIX, "2.0.1", DDPFIX_KIT_FIX="force")
    assert (decision.action, decision.forced, decision.tested) == (State.APPLY, True, False)
    assert decision.row is FIX.rows[1]
    assert "2.0.1" in decision.reason and "1.9.3" in decision.reason
    assert decide(FIX, "1.4.0", DDPFIX_KIT_FIX="force") == decide(FIX, "1.4.0")
    for force in ("1", "force"):
        assert decide(FIX, "0.9.1", DDPFIX_KIT_FIX=force).action == State.NOT_AFFECTED
        never = decide(FIX, "0.5", DDPFIX_KIT_FIX=force)
        assert (never.action, never.reason) == (State.NOT_CURED, "why <0.9")


NEVER = matrix_of(row("<1", status="not-affected"))


@pytest.mark.parametrize(
    ("whole", "version", "reason"),
    [
        (NEVER, "1.0", "kit 1.0 is in no row of the matrix"),
        (FIX, detect.UNRECOGNISED, "kit is not a release that ddpfix knows: a fork, or another package of that name"),
        (FIX, "unknown", "kit has the version 'unknown', which is not a version number"),
    ],
)
def test_a_release_that_no_row_is_for(whole: Matrix, version: str, reason: str) -> None:
    for force in ("1", "force"):
        decision = decide(whole, version, DDPFIX_KIT_FIX=force)
        assert (decision.action, decision.row, decision.reason) == (State.SKIP, None, reason)


@pytest.mark.parametrize("patch", list(loader.load().patches))
def test_switching_one_patch_off_changes_no_other_but_what_needs_it(patch: str) -> None:
    whole = loader.load()
    installed: Dict[str, Optional[str]] = {
        name: str(max(v for row in whole.rows if whole.patches[row.patch].toolkit == name for v in row.tested))
        for name in whole.toolkits
        if any(whole.patches[row.patch].toolkit == name and row.tested for row in whole.rows)
    }

    def decided(environ: Dict[str, str]) -> Dict[str, Tuple[State, str]]:
        chosen = read({}, whole.patches, environ)
        return {d.patch: (d.action, d.reason) for d in resolve.resolve(whole, installed, chosen)}

    before, after = decided({}), decided({switch_name(patch): "0"})
    changed = {name for name in before if before[name][0] != after[name][0]}
    needing = {other.id for other in whole.patches.values() if patch in other.needs}
    assert changed <= {patch, *needing} and after[patch][0] in (State.OFF, State.ABSENT)
    # With DDPFIX_FUNASR_ENTRY=0 six patches were in place and never called.
    for name in (name for name in needing if before[name][0] == State.APPLY):
        action, reason = after[name]
        assert action == State.OFF and reason.startswith(f"needs {patch}, which is not applied here (")
        assert switch_name(patch) in reason


def test_an_absent_toolkit() -> None:
    for environ in ({}, {"DDPFIX_KIT_FIX": "force"}, {"DDPFIX_KIT_FIX": "0"}):
        decision = decide(FIX, None, **environ)
        assert (decision.action, decision.version, decision.reason) == (State.ABSENT, None, "kit is not installed")
    (decision,) = resolve.resolve(FIX, {}, settings_of())
    assert decision.action == State.ABSENT


def test_a_switch_wins_over_arguments() -> None:
    for argument in ("1", "force"):
        chosen = settings_of({"kit_fix": argument}, DDPFIX_KIT_FIX="0")
        (decision,) = resolve.resolve(FIX, {"kit": "1.4.0", "torch": "2.13.0"}, chosen)
        assert (decision.action, decision.reason) == (State.OFF, "switched off by DDPFIX_KIT_FIX")


def test_a_setting_calls_for_the_patch_or_not() -> None:
    wanted = matrix_of(row(">=1", "1.0"), setting="layerdrop", when=("sync", "off"))
    assert decide(wanted, "1.0").action == State.APPLY
    decision = decide(wanted, "1.0", DDPFIX_LAYERDROP="stock")
    assert (decision.action, decision.reason) == (State.OFF, "layerdrop is 'stock', not sync or off")


def test_resolution_is_pure() -> None:
    installed: Dict[str, Optional[str]] = {"kit": "1.4.0", "torch": "2.13.0"}
    values = settings_of(DDPFIX_KIT_FIX="force")
    before = (dict(installed), dict(values.values), dict(values.switches), FIX.rows)
    assert resolve.resolve(FIX, installed, values) == resolve.resolve(FIX, installed, values)
    assert before == (installed, values.values, values.switches, FIX.rows)


def test_a_patch_that_is_off_by_default_waits_for_its_switch() -> None:
    (one,) = matrix_of(row(">=1,<2", "1.0")).patches.values()
    whole = Matrix({"kit": "kit"}, {one.id: one._replace(default=False)}, FIX.rows)
    assert decide(whole, "1.0.2").action == State.OFF
    assert decide(whole, "1.0.2").reason == "not asked for; DDPFIX_KIT_FIX=1 switches it on"
    assert decide(whole, "1.0.2", DDPFIX_KIT_FIX="1").action == State.APPLY
    assert decide(whole, "7.0", DDPFIX_KIT_FIX="1").action == State.SKIP
    assert decide(whole, "7.0", DDPFIX_KIT_FIX="force").action == State.APPLY


def test_a_clone_in_front_of_the_installed_release_tells_its_own_version(tmp_path: Path) -> None:
    """PYTHONPATH may lead to a clone: what is imported counts, not what the metadata of the wheel says."""
    for folder, version in (("clone", "1.5"), ("wheel", "1.0")):
        package = tmp_path / folder / "kit"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("raise RuntimeError('imported')")
        (package / "version.txt").write_text(version + "\n")
    metadata = tmp_path / "wheel" / "kit-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: kit\nVersion: 1.0\n")
    code = (
        "from ddpfix.matrix import detect, model\n"
        "for files in ({}, {'kit': 'version.txt'}):\n"
        "    print(detect.installed_versions(model.Matrix({'kit': 'kit'}, {}, (), files))['kit'].split()[0])\n"
    )
    for path, expected in (
        (("clone", "wheel"), ["1.0", "1.5"]),
        (("wheel",), ["1.0", "1.0"]),
        (("clone",), ["unrecognised", "1.5"]),
    ):
        found = [str(tmp_path / name) for name in path] + [str(ROOT)]
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(found), "DDPFIX": "0"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert done.stdout.split() == expected


# The decision for every released version, and for versions around each end of a range, is the recorded one.


WRITTEN: Dict[str, Any] = json.loads(decisions.FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def found() -> Dict[str, Any]:
    # By the way of the file, in which tuples are lists.
    kept: Dict[str, Any] = json.loads(json.dumps(decisions.snapshot(loader.load(), WRITTEN["versions"])))
    return kept


def test_every_patch_and_no_other_is_written_down(found: Dict[str, Any]) -> None:
    assert list(found) == list(WRITTEN["patches"]), "if that is meant: python -m tests.support.decisions"
    assert len(found) > 70
    assert sum(map(len, WRITTEN["versions"].values())) > 1000


@pytest.mark.parametrize("patch", list(WRITTEN["patches"]))
def test_a_version_is_decided_about_as_before(found: Dict[str, Any], patch: str) -> None:
    assert found[patch] == WRITTEN["patches"][patch], "if that is meant: python -m tests.support.decisions"
