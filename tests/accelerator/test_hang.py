"""A rank that waits for its device is seen, wherever it reads a value; and the rank that it waits for is named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.accelerator import built, hang
from tests.support import ranks
from tests.support.results import lines

pytestmark = [
    pytest.mark.sampled(inside=False),
    pytest.mark.skipif(bool(built.missing()), reason=built.missing()),
    pytest.mark.patches("torch.hang"),
]
# Seconds after which it is said, and for which the rank sleeps.
LIMIT, LATE = 6, 20


@pytest.fixture(scope="module")
def library(request: pytest.FixtureRequest) -> Path:
    assert request.config.cache is not None
    return built.built(request.config.cache.mkdir("accelerator"))


@pytest.mark.parametrize("how", hang.HOW)
def test_the_rank_that_sleeps_is_named(tmp_path: Path, library: Path, how: str) -> None:
    installed = tmp_path / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "small_toolkit.py").write_text("def log(loss):\n    return loss.item()\n")
    environ = ranks.environment({"DDPFIX": "1", "DDPFIX_HANG": str(LIMIT), "LATE": str(LATE)})
    environ["PYTHONPATH"] = f"{environ['PYTHONPATH']}:{installed}"
    command = [*ranks.elastic(2), str(Path(hang.__file__)), str(library), how]
    code, text = ranks.run(command, environ, tmp_path, 200)
    assert code == 0, text[-6000:]
    [told] = [line for line in lines(text) if "ranks wait:" in line]
    assert "rank 1 has been in the script" in told or "rank 1 has been in main" in told, told
    assert "time.sleep(float(os.environ" in told and "rank 0 waits for the GPU" in told, told
