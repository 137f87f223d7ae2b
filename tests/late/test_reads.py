"""A usual step reads no value on the host for ddpfix, as a GPU would be waited for; threads do not call torch.cuda."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

from tests.late.launch import Scenario, steps
from tests.late.saved import STEPS, USUAL

pytestmark = pytest.mark.patches("torch.flag", "torch.finalize", "torch.divergence", "torch.hang", "torch.trace")
BRANCHES, SPEECH = {"kind": "branches"}, {"kind": "speech"}
FLAGGED = {**SPEECH, "find_unused_parameters": True}
# What a training is given, and the settings. A model leaves out parameters, other ones on each rank, or has LayerDrop.
SILENT: Dict[str, Tuple[Dict[str, Any], Dict[str, str]]] = {
    "auto": (BRANCHES, {}),
    "late": (BRANCHES, {"unused": "late"}),
    "find": (BRANCHES, {"unused": "find"}),
    "divergence": (BRANCHES, {"divergence": "1000"}),
    "layerdrop": (SPEECH, {}),
    "layerdrop, late": (SPEECH, {"unused": "late"}),
    "layerdrop, find": (SPEECH, {"unused": "find"}),
    "layerdrop, flag": (FLAGGED, {}),
    "layerdrop, views": ({**SPEECH, "gradient_as_bucket_view": True}, {"unused": "late"}),
}
# Models that leave something out, where DDP has no flag: a rank reads once a step which of it others have used, as DDP
# does with the flag.
LEAVES_OUT = ("auto", "late", "divergence")
USED = "ddpfix.patches.torch.unused.used_map"
TRACE = "trace"
# The line that reads: a digest of the replicas for each device, and what a CPU has anyway.
LOOK = "ddpfix.patches.torch.replicas.fingerprint"


def plans(folder: Path) -> List[Scenario]:
    plans = [Scenario(name, "saved:train", given, settings) for name, (given, settings) in SILENT.items()]
    plans.append(Scenario("plain", "saved:train", FLAGGED))
    plans.append(Scenario("look", "saved:train", {**BRANCHES, "begin": 0}, {"divergence": "1000"}))
    plans.append(Scenario(TRACE, "saved:train", SPEECH, {"trace": str(folder / "rows")}))
    watched = {"trace": str(folder / "cuda"), "hang": "2", "divergence": "4"}
    plans.append(Scenario("cuda_calls", "saved:cuda_calls", settings=watched))
    plans.append(Scenario("cuda_calls_asked", "saved:cuda_calls", {"asks": True}, watched))
    return plans


def reads(outcomes: Dict[str, Any], name: str, whose: str = "ddpfix") -> List[Tuple[str, str, int]]:
    """What reads, where, and how often, on the second rank."""
    _, found = steps(outcomes[name], whose)
    return [(what, line.partition(":")[0], times) for what, line, times in found]


@pytest.mark.parametrize("name", [*SILENT, TRACE])
def test_a_usual_step_reads_nothing(outcomes: Dict[str, Any], name: str) -> None:
    found = reads(outcomes, name)
    if name in LEAVES_OUT:
        assert {where for _, where, _ in found} == {USED}
        assert sum(times for _, _, times in found) <= STEPS - USUAL
    else:
        assert found == []


def test_a_look_at_the_replicas_reads_sums_and_samples_once(outcomes: Dict[str, Any]) -> None:
    found = reads(outcomes, "look")
    # After steps 1, 2, 4 and 8.
    looks = [times for _, where, times in found if where == LOOK]
    assert {where for _, where, _ in found} == {LOOK, USED} and 0 < sum(looks) <= 4 * 2


def test_what_is_there_is_seen(outcomes: Dict[str, Any]) -> None:
    assert any("optim" in where for _, where, _ in reads(outcomes, "plain", "all"))


def test_threads_of_ddpfix_ask_whether_cuda_is_in_use_and_nothing_else(outcomes: Dict[str, Any]) -> None:
    """Any other call can open a context of half a gigabyte on GPU 0, and breaks a graph that the program captures."""
    assert steps(outcomes["cuda_calls"], "ours") == [["is_initialized"]] * 2
    # Neither opens a context.
    questions = {"is_initialized", "is_current_stream_capturing"}
    assert all(set(names) <= questions for names in steps(outcomes["cuda_calls"], "programs")), outcomes["cuda_calls"]
    # A call from such a thread is seen.
    assert all("synchronize" in names for names in steps(outcomes["cuda_calls_asked"], "ours"))
