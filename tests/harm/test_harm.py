"""Programs that are right in plain torch are left as they are: :mod:`tests.harm`."""

from __future__ import annotations

from typing import Iterator

import pytest

from tests.harm import launch
from tests.harm.__main__ import judged
from tests.harm.program import Program, load


def _parameters() -> Iterator[object]:
    for name, each in load().items():
        marks = [pytest.mark.sampled(inside=each.sample)]
        if not each.available:
            marks.append(pytest.mark.skip(reason=f"{each.needs} is not installed here"))
        yield pytest.param(each, marks=marks, id=name)


@pytest.fixture(scope="module", autouse=True)
def _servers() -> Iterator[None]:
    yield
    launch.close()


@pytest.mark.parametrize("program", _parameters())
def test_is_left_as_it_is(program: Program) -> None:
    found, pair = judged(program)
    said = "\n".join(f"{rank}| {line}" for rank, run in enumerate(pair.ddpfix) for line in run.err.splitlines())
    assert not found, "\n".join([*found, said])
