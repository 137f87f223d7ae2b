"""Time limits that accelerate and Trainer are given, and what the process group has (accelerate issue 2236)."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, List, Tuple

import accelerate
import pytest
import torch
import transformers
from packaging.version import Version

from tests.support import pool, results, scenario

SCRIPT = Path(__file__).with_name("time_limits.py")
ACCELERATE, TORCH = Version(accelerate.__version__), Version(torch.__version__)
TRANSFORMERS = Version(transformers.__version__)
# gloo of older releases keeps the limit with which the group was made.
LIVE = Version("2.13") <= TORCH

ours = pytest.mark.patches("accelerate.timeout")
trainers = pytest.mark.patches("transformers.timeout")
needs_trainer = pytest.mark.skipif(
    not Version("4.22") <= TRANSFORMERS, reason="TrainingArguments have no ddp_timeout before 4.22"
)
not_told = pytest.mark.skipif(Version("4.29") > TRANSFORMERS, reason="Trainer makes the group itself before 4.29")


@dataclass
class Case(scenario.Scenario):
    active: bool = False
    timeout: float = 120


@lru_cache(maxsize=None)
def ended(name: str, active: bool) -> Tuple[Any, str]:
    """What both ranks found, and what rank 0 printed of it by ddpfix."""
    with tempfile.TemporaryDirectory() as folder:
        found = pool.results(SCRIPT, [Case(name, active)], Path(folder), 2, {}, results.Result)[name]
    logs = "\n".join(each.log for each in found)
    assert not any(each.hung or each.error for each in found), logs
    outcomes: List[Any] = [each.notes["outcome"] for each in found]
    if name != "waits":
        assert outcomes[0] == outcomes[1], outcomes
    lines = [line for line in logs.splitlines() if "time limit" in line or line.startswith("ddpfix:   Set it where")]
    return outcomes[0], "\n".join(lines)


def is_named(line: str, seconds: int) -> bool:
    call = rf'torch\.distributed\.init_process_group\("gloo", timeout=datetime\.timedelta\(seconds={seconds}\)\)$'
    return line.count("\n") == 1 and "has no effect" in line and re.search(call, line) is not None


@ours
@pytest.mark.skipif(Version("2.2") > TORCH, reason="NCCL has half an hour by itself before torch 2.2")
@pytest.mark.skipif(Version("0.31") <= ACCELERATE, reason="the default of the class is not half an hour since 0.31")
def test_half_an_hour_is_not_lost_as_the_default() -> None:
    assert ended("default_of_the_class", False) == (600, "")
    assert ended("default_of_the_class", True) == (1800, "")


@ours
@pytest.mark.sampled(inside=False, cells=True)
@pytest.mark.parametrize("name", ["positional", "second_accelerator"])
def test_a_group_that_is_up_gets_the_limit_or_the_line_is_named(name: str) -> None:
    check_group_that_is_up(name, 1800)


@ours
@needs_trainer
@not_told
def test_an_accelerator_after_the_arguments_of_trainer() -> None:
    check_group_that_is_up("accelerator_after_trainer", 1800)


def check_group_that_is_up(name: str, before: float) -> None:
    assert ended(name, False) == (before, "")
    found, line = ended(name, True)
    if LIVE:
        assert found == 7200 and line.count("\n") == 0 and f"time limit from {before} s to 7200 s" in line, line
    else:
        assert found == before and is_named(line, 7200), line


@ours
@pytest.mark.sampled(inside=False, cells=True)
@pytest.mark.skipif(not LIVE, reason="gloo keeps the limit with which the group was made")
def test_collectives_wait_for_as_long_as_the_user_said() -> None:
    assert "error" in str(ended("waits", False)[0])
    assert ended("waits", True)[0] == "sum 2"


@ours
def test_a_shorter_limit_is_named_and_not_put_in_force() -> None:
    assert ended("shorter", False) == (1800, "")
    found, line = ended("shorter", True)
    assert found == 1800 and is_named(line, 60) and "does not shorten" in line, line


@pytest.mark.parametrize(("name", "limit"), [("nothing_said", 600), ("named_line", 60), ("fresh", 7200)])
def test_what_holds_anyway_stays_without_a_word(name: str, limit: float) -> None:
    assert ended(name, False) == ended(name, True) == (limit, "")


@trainers
@needs_trainer
@not_told
@pytest.mark.parametrize("name", ["trainer_fresh", "trainer_not_on_cpu"])
def test_trainer_tells_the_limit_to_a_new_group(name: str) -> None:
    if name == "trainer_not_on_cpu" and not (Version("4.31") > TRANSFORMERS and Version("0.26") < ACCELERATE):
        pytest.skip("Trainer says it since 4.31; accelerate needs a GPU here up to 0.26")
    assert ended(name, False) == (1800, "")
    assert ended(name, True) == (7200, "")


@trainers
@needs_trainer
def test_trainer_finds_a_group_that_is_up() -> None:
    check_group_that_is_up("trainer_after_group", 600)


@trainers
@needs_trainer
def test_a_shorter_limit_of_trainer_is_named() -> None:
    assert ended("trainer_shorter", False) == (600, "")
    found, line = ended("trainer_shorter", True)
    assert found == 600 and is_named(line, 60), line


@needs_trainer
@pytest.mark.parametrize(
    ("name", "limit"), [("trainer_nothing_said", 600), ("trainer_parsed_default", 600), ("trainer_named_line", 7200)]
)
def test_what_holds_with_trainer_stays_without_a_word(name: str, limit: float) -> None:
    assert ended(name, False) == ended(name, True) == (limit, "")
