"""A device that is no CPU, without one: models train on the stand-in accelerator as on the host, and nobody waits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Dict, List, NamedTuple

import pytest

from ddpfix.trace import reader
from tests.accelerator import stand_in
from tests.accelerator.models import MODELS
from tests.accelerator.rank import HOW, STEPS, USUAL
from tests.support import ranks
from tests.support.results import lines

pytestmark = [
    pytest.mark.sampled(inside=False),
    pytest.mark.skipif(bool(stand_in.missing()), reason=stand_in.missing()),
]
RANK = Path(__file__).with_name("rank.py")
# Seconds after which a hang is said, and for which a rank sleeps.
LIMIT, LATE = 6, 20


class Run(NamedTuple):
    """What two ranks left and printed."""

    found: List[Dict[str, Any]]
    text: str


@pytest.fixture(scope="module")
def library(request: pytest.FixtureRequest) -> Path:
    assert request.config.cache is not None
    return stand_in.built(request.config.cache.mkdir("accelerator"))


def run(folder: Path, library: str, kinds: str, **settings: str) -> Run:
    environ = ranks.environment({"DDPFIX": "1", "DDPFIX_LOG": "debug", **settings})
    command = [*ranks.elastic(2), str(RANK), str(folder), library, kinds]
    code, text = ranks.run(command, environ, folder, 300)
    assert code == 0, text[-6000:]
    return Run([json.loads(file.read_text()) for file in sorted(folder.glob("found.*.json"))], text)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Dict[str, Run]:
    kinds = ";".join(MODELS)

    def trained(name: str, library: str, **settings: str) -> Run:
        return run(tmp_path_factory.mktemp(name), library, kinds, **settings)

    return {
        "host": trained("host", ""),
        "auto": trained("auto", str(library)),
        "late": trained("late", str(library), DDPFIX_UNUSED="late"),
    }


@pytest.mark.parametrize("where", ["host", "auto", "late"])
@pytest.mark.parametrize("kind", MODELS)
def test_ranks_have_the_same_model(runs: Dict[str, Run], where: str, kind: str) -> None:
    """Ascend has no float64 in its collectives, MPS none at all: there the constructor of these models raised."""
    one, other = (found[kind]["weights"] for found in runs[where].found)
    assert one == other


@pytest.mark.parametrize("where", ["auto", "late"])
@pytest.mark.parametrize("kind", MODELS)
def test_it_is_the_model_of_the_host_and_no_step_reads_a_value(runs: Dict[str, Run], where: str, kind: str) -> None:
    """But a model that leaves something out, once a step: torch waits as often for its bitmap under the flag."""
    here, there = (runs[name].found[0][kind]["weights"] for name in (where, "host"))
    assert here == pytest.approx(there, abs=1e-5)
    for found in runs[where].found:
        assert _beside_the_bitmap(found[kind]["reads"]) == []


def _beside_the_bitmap(reads: List[Any]) -> List[Any]:
    bitmap = [each for each in reads if each[1].startswith("ddpfix.patches.torch.unused.used_map:")]
    assert sum(each[2] for each in bitmap) <= STEPS - USUAL
    return [each for each in reads if each not in bitmap]


@pytest.mark.parametrize("where", ["host", "auto", "late"])
def test_replicas_are_compared_and_no_thread_of_ddpfix_calls_the_device(runs: Dict[str, Run], where: str) -> None:
    """Samples of parameters were taken in float64: on a device that has none, the watch was off without a word."""
    assert "no longer compared" not in runs[where].text
    for found in runs[where].found:
        assert [call for call in found.get("calls", ()) if call[1] == "ddpfix"] == []


def test_a_trace_has_the_numbers_of_the_device(tmp_path: Path, library: Path) -> None:
    """The model is on the second device, and the first one is current; only the program's threads may ask."""
    told = run(tmp_path, str(library), "branches", DDPFIX_TRACE=str(tmp_path / "trace"))
    for steps in [each.steps for each in reader.read(tmp_path / "trace").runs.values()]:
        assert len(steps["step"]) == STEPS
        assert all(isinstance(value, float) for value in steps["wait"]), steps["wait"]
        assert set(steps["peak"]) == {stand_in.PEAK} and set(steps["reserved"]) == {stand_in.RESERVED}
        assert set(steps["used"]) - {None} == {stand_in.PEAK - 1}
    for found in told.found:
        calls = found["calls"]
        assert [call for call in calls if call[1] == "ddpfix"] == []
        # Events stand on a stream of the model's device, and of the current one only captures are asked for.
        assert {call[0] for call in calls if call[2] is None} <= {*_OF_EVENTS, "is_current_stream_capturing"}
        assert {call[2] for call in calls} == {None, 1}
        assert _beside_the_bitmap(found["branches"]["reads"]) == []


_OF_EVENTS = ("Event.record", "Event.query", "Event.elapsed_time")


@pytest.mark.patches("torch.hang")
@pytest.mark.parametrize("how", HOW)
def test_a_rank_that_waits_for_its_device_is_seen_and_the_one_that_sleeps_is_named(
    tmp_path: Path, library: Path, how: str
) -> None:
    """Wherever it reads a value: in the script, in an installed toolkit, or in a gradient scaler."""
    installed = tmp_path / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "small_toolkit.py").write_text("def log(loss):\n    return loss.item()\n")
    paths = f"{ranks.environment()['PYTHONPATH']}:{installed}"
    found = run(tmp_path, str(library), how, DDPFIX_HANG=str(LIMIT), LATE=str(LATE), PYTHONPATH=paths)
    [told] = [line for line in lines(found.text) if "ranks wait:" in line]
    assert "rank 1 has been in _hang" in told, told
    assert "time.sleep(float(os.environ" in told and "rank 0 waits for the GPU" in told, told
