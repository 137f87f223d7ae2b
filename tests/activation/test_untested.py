"""Releases that nobody has tested, by edited metadata, on two real ranks: one line, and nothing else by default."""

from __future__ import annotations

from pathlib import Path
from typing import List, NamedTuple

import pytest
import torch

from tests.support import ranks

PROGRAM = Path(__file__).with_name("untested.py")
HEAD = "is none of the releases that ddpfix was tested with (nearest: "
REDUCTION = "Expected to have finished reduction in the prior iteration"


class Job(NamedTuple):
    code: int
    output: str

    @property
    def told(self) -> List[str]:
        return [line for line in self.output.splitlines() if HEAD in line]

    @property
    def trained(self) -> List[str]:
        return [line for line in self.output.splitlines() if line.startswith("trained")]


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


@pytest.mark.parametrize("version", ["2.16.0", pytest.param("1.13.1", marks=pytest.mark.sampled(inside=False))])
def test_a_torch_that_nobody_has_tested_is_said_once_and_left_alone(tmp_path: Path, version: str) -> None:
    found = job(tmp_path, "torch", version, "plain")
    assert REDUCTION in found.output and not found.trained
    (line,) = found.told
    assert f"torch {version} {HEAD}" in line and "fixes are left out, and it runs as without ddpfix" in line
    cure = "DDPFIX_UNTESTED=apply applies those" if version > "2" else "pip install 'torch==2.0.1' has them"
    assert cure in line


@pytest.mark.sampled(inside=False)
def test_the_start_of_torchrun_says_nothing(tmp_path: Path) -> None:
    found = job(tmp_path, "torch", "2.16.0", "plain", DDPFIX="1")
    assert len(found.told) == 1


def test_a_newer_torch_whose_places_are_unchanged_trains_the_same(tmp_path: Path, tested: Job) -> None:
    found = job(tmp_path, "torch", "2.16.0", "plain", DDPFIX_UNTESTED="apply")
    assert tested.code == 0 and len(tested.trained) == 1 and not tested.told
    assert found.code == 0 and found.trained == tested.trained, found.output
    (line,) = found.told
    assert "DDPFIX_UNTESTED=apply applies the fixes whose places look as in a tested release" in line
    assert "fixes ready for torch 2.16.0" in found.output and "; untested: torch 2.16.0" in found.output


def test_a_changed_place_stays_as_it_is(tmp_path: Path) -> None:
    found = job(tmp_path, "torch", "2.16.0", "changed", DDPFIX_UNTESTED="apply")
    assert REDUCTION in found.output and not found.trained
    assert "torch.flag is not applied" in found.output and "does not look as in 2.15.0" in found.output


@pytest.mark.sampled(inside=False)
def test_another_toolkit_is_said_where_a_model_is_wrapped(tmp_path: Path, tested: Job) -> None:
    pytest.importorskip("transformers")
    found = job(tmp_path, "transformers", "5.99.0", "transformers")
    assert found.code == 0 and found.trained == tested.trained, found.output
    (line,) = found.told
    assert f"transformers 5.99.0 {HEAD}5.24.0)" in line and "DDPFIX_UNTESTED=apply applies those" in line


def test_another_toolkit_is_applied_by_its_looks(tmp_path: Path, tested: Job) -> None:
    pytest.importorskip("transformers")
    found = job(tmp_path, "transformers", "5.99.0", "transformers", DDPFIX_UNTESTED="apply")
    assert found.code == 0 and found.trained == tested.trained, found.output
    assert "is not applied" not in found.output and "; untested: transformers 5.99.0" in found.output


@pytest.mark.sampled(inside=False)
def test_what_a_toolkit_hands_to_ddp_is_not_called_the_users_setting(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    found = job(tmp_path, "torch", torch.__version__, "lightning")
    told = "find_unused_parameters=False is what lightning hands to DDP, by its default or by a setting of it,"
    assert told in found.output and "Have lightning hand over True, or set DDPFIX_LAYERDROP=off." in found.output
    # Lightning replaces the message, and the traceback has what is known all the same.
    assert "ddpfix: cause: inner.1.layers." in found.output
    assert 'Trainer(..., strategy="ddp_find_unused_parameters_true")' in found.output
    assert "your own setting" not in found.output and "were not used in producing the loss" in found.output
