"""Each row of docs/symptoms.md is run: its text in plain torch, then what ddpfix does or says of the same program."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence

import pytest
import torch

from tests.late import launch
from tests.late.launch import Ranks, Scenario, ends
from tests.ranks.test_explained import PROGRAM
from tests.ranks.test_failures import job
from tests.support import ranks

PAGE = Path(__file__).parents[2] / "docs" / "symptoms.md"
SAME = "the same"


class Shown(NamedTuple):
    """A program of two ranks."""

    program: str  # a function of a file beside this one
    said: str = ""  # what a rank says under ddpfix, the text of the row (SAME), or "" where the job has to train


# What the first column begins with, without its marks.
HERE: Dict[str, Shown] = {
    "Expected to have finished reduction": Shown("diagnosed:never"),
    "It looks like your LightningModule": Shown("lightning_unused"),
    "Parameter indices which did not receive grad": Shown("diagnosed:explicit_false", "aux (0.weight, 0.bias,"),
    "Expected to mark a variable ready only once": Shown("diagnosed:reentrant_and_flag"),
    "Your training graph has changed": Shown("diagnosed:static_new", SAME),
    "find_unused_parameters=True was specified": Shown("flag_for_nothing", SAME),
    "DDP expects same model across all ranks": Shown("other_models", SAME),
    "one of the variables needed for gradient": Shown("past_calls:moving", SAME),
    "Trying to backward through the graph": Shown("backward_twice", SAME),
    "Timed out waiting": Shown("late_rank", "ddpfix: ranks wait: rank 1 "),
}
# Tests elsewhere, by file and function: of plain torch, and of ddpfix.
FAILING = "ranks/test_failures::test_unpatched_the_others_name_the_connection_and_the_summary_has_nothing"
CAUSE = "ranks/test_failures::test_every_rank_has_the_cause_as_its_last_words"
ELSEWHERE: Dict[str, Sequence[str]] = {
    "nothing, at the same step": ["ranks/test_hang::test_one_paragraph_names_rank_place_and_cause"],
    "Connection closed by peer": [FAILING, CAUSE],
    "data of different lengths": ["late/test_uneven::test_an_epoch_ends_together_as_if_evened_by_hand"],
    "torch.distributed.elastic": [FAILING, CAUSE],
    "exitcode  : -9": ["late/test_symptoms::test_a_rank_that_is_killed"],
    "exitcode  : -6": ["ranks/test_apart::test_a_rank_that_a_signal_has_ended_is_called_by_it"],
    "CUDA out of memory": ["late/test_symptoms::test_a_gpu_without_memory"],
    "FunASR: 'NoneType'": ["funasr/test_named::test_what_is_wrong_is_named"],
    "FunASR: 'str' object": ["funasr/test_named::test_what_is_wrong_is_named"],
    "SpeechBrain: Override": ["speechbrain/test_options_yaml::test_a_key_one_level_down_is_named"],
    "a setting on the command line": [
        "ranks/test_ranks::test_unpatched_a_rate_set_on_the_config_is_ignored",
        "ranks/test_ranks::test_a_rate_set_on_the_config_takes_effect",
    ],
    "losses or checkpoints": ["late/test_divergence::test_every_rank_says_which_one_differs"],
    "memory climbs": [
        "trace/test_memory::test_what_is_kept_of_each_step_is_named",
        "funasr/test_batches::test_lengths_do_not_climb",
    ],
    "each rank skips different layers": [
        "ranks/test_ranks::test_unpatched_trainer_asks_for_unused_parameters_but_ranks_skip_differently",
        "ranks/test_ranks::test_plain_loops",
    ],
    "no line begins with ddpfix": ["late/test_symptoms::test_a_variable_that_is_misspelt"],
    "ddpfix is OFF": ["activation/test_switch::test_a_bad_setting_is_one_line_and_the_program_runs_as_without_us"],
    "was wrapped by": ["late/test_symptoms::test_a_model_that_was_wrapped_before"],
    "was not tested": ["activation/test_untested::test_a_changed_place_leaves_out_what_is_put_there_alone"],
    "ddpfix is active on rank 0": ["ranks/test_ranks::test_a_rank_without_ddpfix_is_named"],
}
# NCCL's watchdog waits for two GPUs: python -m tests.gpu has the hang that comes before it.
NOWHERE = ("Watchdog caught collective",)


def rows() -> List[str]:
    """The first column of each row."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
    return [cell.replace("`", "") for cell in cells if cell not in ("text", "what you see")]


def row(begins: str) -> str:
    (found,) = [each for each in rows() if each.startswith(begins)]
    return found


def test_each_row_has_its_test() -> None:
    known = (*HERE, *ELSEWHERE, *NOWHERE)
    assert [each for each in rows() if not each.startswith(known)] == [] and len(rows()) == len(known)
    assert [row(begins) for begins in known]
    for name in (name for names in ELSEWHERE.values() for name in names):
        file, _, function = name.partition("::")
        assert f"def {function}(" in (ranks.ROOT / "tests" / f"{file}.py").read_text(encoding="utf-8"), name


def plans(folder: Path) -> List[Scenario]:
    plans = [
        Scenario("before", function="activated_late"),
        Scenario("cured", function="past_calls:statistics", settings={}),
    ]
    for shown in HERE.values():
        for how, settings in (("plain", None), ("ours", {})):
            name = f"{how}-{shown.program.replace(':', '.')}"
            plans.append(Scenario(name, function=shown.program, settings=settings, stays=8))
    return plans


def printed(found: Ranks) -> str:
    return "\n".join([*(log for log, _ in found), *ends(found)])


@pytest.mark.parametrize("begins", HERE)
def test_it_fails_in_plain_torch_and_ddpfix_does_what_the_page_says(begins: str, outcomes: Dict[str, Ranks]) -> None:
    shown = HERE[begins]
    name = shown.program.replace(":", ".")
    if "lightning" in name and not find_spec("lightning"):
        pytest.skip("lightning is not installed here")
    plain, ours = outcomes[f"plain-{name}"], outcomes[f"ours-{name}"]
    text = re.sub(r"\d[\d ]*", r"\\d[\\d ]*", re.escape(row(begins)).replace(r"\ ", " "))
    assert re.search(text, printed(plain)), plain
    assert "ddpfix: " not in printed(plain), plain
    if shown.said:
        assert re.search(text, printed(ours)) if shown.said == SAME else shown.said in printed(ours), ours
    else:
        assert ends(ours) == ["", ""], ours


def test_two_forwards_train_on_each_torch(outcomes: Dict[str, Ranks]) -> None:
    assert ends(outcomes["cured"]) == ["", ""], outcomes["cured"]


def test_a_model_that_was_wrapped_before(outcomes: Dict[str, Ranks]) -> None:
    assert row("was wrapped by") in printed(outcomes["before"]), outcomes["before"]


def test_a_rank_that_is_killed(tmp_path: Path) -> None:
    plain = job(tmp_path / "plain", "killed", limit=180)
    # The launcher ends the other rank when it looks.
    ours = job(tmp_path / "ours", "killed", "--monitor_interval", "6", limit=180, DDPFIX="1")
    for found in (plain, ours):
        assert all(text in found.summary for text in row("exitcode  : -9").split(", ")), found
        assert ("rank 1 ended without a word" in found.ranks[0]) is (found is ours), found
    assert "It was ended by SIGKILL" in ours.ranks[0], ours


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_without_memory() -> None:
    with pytest.raises(torch.cuda.OutOfMemoryError, match=row("CUDA out of memory")):
        torch.empty(1 << 45, device="cuda")


def test_a_variable_that_is_misspelt(tmp_path: Path) -> None:
    """DDPFX: the job fails as before, and ``run`` in front of it says what is done."""
    (tmp_path / "train.py").write_text(PROGRAM.format(all=False, keywords="{}"))
    commands = [[sys.executable, *before, "train.py"] for before in ([], ["-m", "ddpfix", "run"])]
    environs = [ranks.of_a_shell(1, {"DDPFX": "1"})[0] for _ in commands]
    plain, ours = ranks.side_by_side(commands, environs, tmp_path)
    assert plain.code == 1 and launch.FAILURE in plain.errors and "ddpfix: " not in plain.errors, plain
    assert ours.code == 0 and ours.errors.startswith("ddpfix "), ours
