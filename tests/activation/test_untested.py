"""Releases that were not tested, by edited metadata, on two real ranks."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import List, NamedTuple

import pytest
import torch

from ddpfix.matrix import compiled, loader
from ddpfix.matrix.compiling import write
from ddpfix.matrix.compiling.reader import Reader
from tests.releases.hashes import noted_here
from tests.support import ranks
from tests.support.compiled import YAML

PROGRAM = Path(__file__).with_name("untested.py")
HEAD = " fixes are left out; pip install "
REDUCTION = "Expected to have finished reduction in the prior iteration"


class Job(NamedTuple):
    code: int
    output: str

    def lines(self, pattern: str) -> List[str]:
        return [line for line in self.output.splitlines() if re.search(pattern, line)]


def as_newest(folder: Path, toolkit: str) -> None:
    """A copy of the package, for which the code that is installed here is that of the newest tested release."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ranks.ROOT / "ddpfix", folder / "ddpfix", ignore=ignored)
    (folder / "patches").symlink_to(ranks.ROOT / "patches")
    here, plain = noted_here(loader.load(), toolkit), Reader(YAML).plain()
    text = write.sealed({**plain, "code": here.code, "parameters": here.parameters}, b"")
    (folder / "ddpfix" / compiled.NAME).write_text(text, encoding="utf-8")


def job(folder: Path, toolkit: str, version: str, mode: str, **variables: str) -> Job:
    for name, number in zip(toolkit.split(), version.split()):
        metadata = folder / f"{name}-{number}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    environ = ranks.environment(variables)
    environ["PYTHONPATH"] = f"{folder}:{environ['PYTHONPATH']}"
    return Job(*ranks.run([*ranks.elastic(2), str(PROGRAM), mode], environ, folder, 200))


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return job(tmp_path_factory.mktemp("tested"), "torch", torch.__version__, "plain")


OLD = pytest.param("1.13.1", "apply", marks=pytest.mark.sampled(inside=False))


@pytest.mark.parametrize(("version", "untested"), [("3.0.0", "unchanged"), ("2.16.0", "off"), OLD])
def test_a_torch_that_is_left_as_it_is_is_said_once(tmp_path: Path, version: str, untested: str) -> None:
    # Under DDPFIX=1 torchrun is a process of ddpfix too, and says nothing.
    switch = {"DDPFIX": "1"} if untested == "unchanged" else {}
    found = job(tmp_path, "torch", version, "plain", DDPFIX_UNTESTED=untested, **switch)
    assert REDUCTION in found.output and not found.lines("^trained")
    (line,) = found.lines(HEAD)
    way = r"\(nearest: [\d.]+\): \d+ fixes are left out; pip install 'torch==[\d.]+' enables them"
    assert re.search(rf"torch {version} was not tested {way}", line)
    assert found.output.count("DDPFIX_UNTESTED=apply was removed in 1.1.0: leave it out") == (untested == "apply")


NIGHTLY = pytest.param("2.16.0.dev20261101+cpu", marks=pytest.mark.sampled(inside=False))
START = re.compile(r"ddpfix [\d.]+: (\d+) fixes in use for torch [^,;]+(.*) \(python -m ddpfix plan\)")


@pytest.mark.parametrize("version", ["2.99.0", NIGHTLY])
def test_a_newer_torch_whose_places_are_unchanged_trains_the_same(tmp_path: Path, tested: Job, version: str) -> None:
    as_newest(tmp_path, "torch")
    found = job(tmp_path, "torch", version, "plain")
    assert tested.code == 0 and len(tested.lines("^trained")) == 1 and not tested.lines(HEAD)
    assert found.code == 0 and found.lines("^trained") == tested.lines("^trained"), found.output
    # The first line says so, and no other differs.
    (first,), (other,) = [list(filter(None, map(START.match, each.lines("^ddpfix")))) for each in (tested, found)]
    assert other[1] == first[1] and f" in use for torch {version}" in other[0]
    assert re.fullmatch(
        rf"; \d+ not tested with torch {re.escape(version)} \(unchanged there\)", other[2][len(first[2]) :]
    )
    assert {*tested.lines("^ddpfix")} - {first[0]} == {*found.lines("^ddpfix")} - {other[0]} and not found.lines(HEAD)


PLACE = "torch.nn.parallel.distributed:DistributedDataParallel._match_all_reduce_for_bwd_pass"
DIFFERS = "differs from torch 2.15.0 (2.99.0 was not tested)"
LEFT_OUT = {
    # What marks unused parameters as ready changes this method: DDP's own error is raised, and explained.
    "changed": f"torch.finalize is left out: {PLACE} {DIFFERS}",
    # A probe of compiled code leaves out the fix that relies on it.
    "compiled": f"torch.finalize is left out: the behaviour of the compiled code {DIFFERS}",
    # 2.13 is as if 2.15 had been changed: what needs DDP's constructor is left out, and the rest is in place.
    "plain": "torch.flag is left out: torch.nn.parallel.distributed:Dist",
}


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=pytest.mark.sampled(inside=mode == "changed")) for mode in LEFT_OUT]
)
def test_a_changed_place_leaves_out_what_is_put_there_alone(tmp_path: Path, mode: str) -> None:
    if mode != "plain":
        as_newest(tmp_path, "torch")
    found = job(tmp_path, "torch", "2.99.0", mode)
    assert REDUCTION in found.output and not found.lines("^trained")
    (left,) = [line for line in found.lines("^ddpfix") if LEFT_OUT[mode] in line]
    if mode != "plain":
        assert left.endswith(LEFT_OUT[mode]) and "; 1 left out (changed)" in found.output
    if mode == "changed":
        assert "got no gradient" in found.output and "could not be applied" not in found.output


def test_another_toolkit_is_applied_where_its_places_are_unchanged(tmp_path: Path, tested: Job) -> None:
    pytest.importorskip("transformers")
    as_newest(tmp_path, "transformers")
    found = job(tmp_path, "transformers", "5.25.0", "transformers")
    assert found.code == 0 and found.lines("^trained") == tested.lines("^trained"), found.output
    assert "left out" not in found.output and "not tested with transformers 5.25.0 (unchanged there)" in found.output


@pytest.mark.sampled(inside=False)
def test_another_toolkit_that_is_left_as_it_is_is_said_where_a_model_is_wrapped(tmp_path: Path, tested: Job) -> None:
    pytest.importorskip("transformers")
    found = job(tmp_path, "transformers", "6.0.0", "transformers")
    assert found.code == 0 and found.lines("^trained") == tested.lines("^trained"), found.output
    (line,) = found.lines(HEAD)
    assert "transformers 6.0.0 was not tested (nearest: 5.24.0): " in line and "fixes are left out" in line


@pytest.mark.sampled(inside=False)
def test_what_a_toolkit_hands_to_ddp_is_not_called_the_users_setting(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    found = job(tmp_path, "torch", torch.__version__, "lightning")
    told = "find_unused_parameters=False is what lightning hands to DDP, by its default or by a setting of it,"
    assert told in found.output and "Make lightning pass True, or set DDPFIX_LAYERDROP=off" in found.output
    # Lightning replaces the message, and the traceback has what is known all the same.
    assert "ddpfix: cause: Item skips layers at random (layerdrop 0.5), inner.1.layers." in found.output
    assert 'Trainer(..., strategy="ddp_find_unused_parameters_true")' in found.output
    assert "your own setting" not in found.output and "were not used in producing the loss" in found.output
