"""Time limits that accelerate and Trainer are given, and what the process group has (accelerate issue 2236)."""

from __future__ import annotations

import re
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any, List, Tuple

import accelerate
import pytest
import torch
import transformers
from packaging.version import Version

from tests.ranks.launch import Scenario
from tests.support import pool, results

SCRIPT = Path(__file__).with_name("time_limits.py")
ACCELERATE, TORCH = Version(accelerate.__version__), Version(torch.__version__)
TRANSFORMERS = Version(transformers.__version__)
# gloo of older releases keeps the limit with which the group was made.
LIVE = Version("2.13") <= TORCH


@lru_cache(maxsize=None)
def ended(name: str, active: bool) -> Tuple[Any, str]:
    """What both ranks found, and what rank 0 printed of it by ddpfix."""
    with tempfile.TemporaryDirectory() as folder:
        found = pool.results(SCRIPT, [Scenario(name, active=active)], Path(folder), 2, {}, results.Result)[name]
    logs = "\n".join(each.log for each in found)
    assert not any(each.hung or each.error for each in found), logs
    outcomes: List[Any] = [each.notes["outcome"] for each in found]
    if name != "waits":
        assert outcomes[0] == outcomes[1], outcomes
    lines = [line for line in logs.splitlines() if "time limit" in line or line.startswith("ddpfix:   Set it where")]
    return outcomes[0], "\n".join(lines)


OURS, TRAINERS = pytest.mark.patches("accelerate.timeout"), pytest.mark.patches("transformers.timeout")
LONG = pytest.mark.sampled(inside=False, cells=True)
NEEDS_TRAINER = pytest.mark.skipif(
    not Version("4.22") <= TRANSFORMERS, reason="TrainingArguments have no ddp_timeout before 4.22"
)
NOT_TOLD = pytest.mark.skipif(Version("4.29") > TRANSFORMERS, reason="Trainer makes the group itself before 4.29")
HALF_AN_HOUR = (
    pytest.mark.skipif(Version("2.2") > TORCH, reason="NCCL has half an hour by itself before torch 2.2"),
    pytest.mark.skipif(Version("0.31") <= ACCELERATE, reason="the default of the class is not half an hour since 0.31"),
)
ON_CPU = pytest.mark.skipif(
    not (Version("4.31") > TRANSFORMERS and Version("0.26") < ACCELERATE),
    reason="Trainer says it since 4.31; accelerate needs a GPU here up to 0.26",
)
# Of a group that is up a line says that it gets the limit, or which line would give it that; a shorter one never does.
SET, SHORTER = "set", "shorter"


@pytest.mark.parametrize(
    ("name", "before", "after", "says"),
    [
        pytest.param("default_of_the_class", 600, 1800, "", marks=[OURS, *HALF_AN_HOUR]),
        pytest.param("positional", 1800, 7200, SET, marks=[OURS, LONG]),
        pytest.param("second_accelerator", 1800, 7200, SET, marks=[OURS, LONG]),
        pytest.param("accelerator_after_trainer", 1800, 7200, SET, marks=[OURS, NEEDS_TRAINER, NOT_TOLD]),
        pytest.param("shorter", 1800, 60, SHORTER, marks=OURS),
        # What holds anyway stays without a word.
        *(("nothing_said", 600, 600, ""), ("named_line", 60, 60, ""), ("fresh", 7200, 7200, "")),
        pytest.param("trainer_fresh", 1800, 7200, "", marks=[TRAINERS, NEEDS_TRAINER, NOT_TOLD]),
        pytest.param("trainer_not_on_cpu", 1800, 7200, "", marks=[TRAINERS, NEEDS_TRAINER, NOT_TOLD, ON_CPU]),
        pytest.param("trainer_after_group", 600, 7200, SET, marks=[TRAINERS, NEEDS_TRAINER]),
        pytest.param("trainer_shorter", 600, 60, SHORTER, marks=[TRAINERS, NEEDS_TRAINER]),
        pytest.param("trainer_nothing_said", 600, 600, "", marks=NEEDS_TRAINER),
        pytest.param("trainer_parsed_default", 600, 600, "", marks=NEEDS_TRAINER),
        pytest.param("trainer_named_line", 7200, 7200, "", marks=NEEDS_TRAINER),
    ],
)
def test_the_limit_of_the_group_and_what_is_said(name: str, before: float, after: float, says: str) -> None:
    assert ended(name, False) == (before, "")
    found, line = ended(name, True)
    if says == "":
        assert (found, line) == (after, "")
    elif says == SET and LIVE:
        assert found == after and line.count("\n") == 0 and f"time limit from {before} s to {after} s" in line, line
    else:
        call = rf'torch\.distributed\.init_process_group\("gloo", timeout=datetime\.timedelta\(seconds={after}\)\)$'
        assert found == before and line.count("\n") == 1 and "has no effect" in line and re.search(call, line), line
        assert says == SET or name.startswith("trainer") or "does not shorten" in line, line


@OURS
@LONG
@pytest.mark.skipif(not LIVE, reason="gloo keeps the limit with which the group was made")
def test_collectives_wait_for_as_long_as_the_user_said() -> None:
    assert "error" in str(ended("waits", False)[0])
    assert ended("waits", True)[0] == "sum 2"
