"""What programs of public threads get: the line that names the cause, or none; :mod:`.threads` has the programs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, List

import pytest

from tests.ranks import threads
from tests.support import ranks, results

SCRIPT = Path(threads.__file__)
HERE = r"threads\.py:\d+"
# A program -> what its line says.
NAMED: Dict[str, str] = {
    # The first rank is in a barrier, and the other one has gone on to the next backward.
    "sparsify_5": rf"rank 0 waits in barrier \({HERE}: dist.* rank 1 waits in all-reduce of step 4",
    "kempner_50": r"rank 0 waits in all_reduce .* rank 1 waits in broadcast_object_list",
    "automodel_2468": r"rank 1 left its process group in step 6\. Backward was called 5 times in 6 forwards on rank 1",
    "accelerate_1708": rf"this Linear differs from rank 0's: in 24 .* accumulate \({HERE}\)\. Use a single accumulate",
    "autocast_386": rf"Rank 0 has begun one collective more, at save_checkpoint \(trainer\.py:\d+\), called at {HERE}",
    "lightning_20404": r"Rank 0 left the loop over the data first\. Uneven data\? DDPFIX_UNEVEN=stop or pad",
    "lightning_5243": rf"rank 1 failed in step \d: RuntimeError: Skipping the `training_step` .*\({HERE}\)",
}
# A program -> the advice that it gets.
CURES: Dict[str, str] = {
    "sparsify_5": "Call it on all ranks or on none",
    "autocast_386": "Call it on all ranks or on none",
    "automodel_2468": "Skip a batch on all ranks or on none: all_reduce the decision",
    "accelerate_1708": r"Use a single accumulate\(a, b\) for all models",
    "backward_inside": "call backward after the forward",
    "flag_set_after": "set it before the forward",
}
# Programs that train, or at which nobody can tell whether they mean it so.
SILENT = ("lvsm_22", "cosyvoice")
LONG = pytest.mark.sampled(inside=False, cells=True)
SHORT = ("automodel_2468",)


def marked(names: List[str]) -> List[object]:
    return [pytest.param(name, marks=() if name in SHORT else LONG) for name in names]


def run(folder: Path, name: str, *words: str, **environ: str) -> List[str]:
    """The lines of ddpfix but for the first one, and the other lines that are asked for."""
    if "lightning" in name or name.startswith("autocast"):
        pytest.importorskip("lightning")
    environ = {"DDPFIX": "1", "DDPFIX_HANG": "8", "DDPFIX_HANG_EXIT": "1", **environ}
    _, output = ranks.run([*ranks.elastic(2), str(SCRIPT), name, *words], ranks.environment(environ), folder, 120)
    lines = results.lines(output)
    return [line for line in lines if line.startswith("ddpfix") and " in use for " not in line or line == "ended"]


@pytest.mark.patches("torch.hang", "torch.failures", "torch.divergence")
@pytest.mark.parametrize("name", marked([*NAMED]))
def test_the_cause_is_named(tmp_path: Path, name: str) -> None:
    lines = run(tmp_path, name)
    assert any(re.search(NAMED[name], line) for line in lines), lines


@pytest.mark.patches()
@LONG
@pytest.mark.parametrize("name", [*CURES])
def test_the_advice_of_the_line_cures_it(tmp_path: Path, name: str) -> None:
    assert any(re.search(CURES[name], line) for line in run(tmp_path, name))
    assert run(tmp_path, name, "cured") == ["ended", "ended"]


@pytest.mark.patches("torch.uneven")
@pytest.mark.sampled(inside=False, cells=True)
def test_the_advice_about_uneven_data_cures_it(tmp_path: Path) -> None:
    lines = run(tmp_path, "lightning_20404", DDPFIX_UNEVEN="stop")
    assert lines.count("ended") == 2, lines


@pytest.mark.patches()
@pytest.mark.parametrize("name", marked([*SILENT]))
def test_nothing_is_said_of_a_program_that_may_mean_it(tmp_path: Path, name: str) -> None:
    assert run(tmp_path, name) == ["ended", "ended"]
