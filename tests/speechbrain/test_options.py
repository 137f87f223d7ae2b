"""What a user types is what runs: run options in every spelling, on the release as it is and then under ddpfix.

What is right on the release comes out the same, letter by letter.
"""

from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path
from typing import Any, Iterator, List

import pytest
import speechbrain
from ddpfix.patches.speechbrain import options as patch

import ddpfix
from tests.speechbrain import parsing
from tests.speechbrain.parsing import RELEASE, UNPATCHED, as_unpatched, no_launcher, patched, unpatched  # noqa: F401

pytestmark = [pytest.mark.patches("speechbrain.options"), pytest.mark.usefixtures("no_launcher")]

FLAG = "find_unused_parameters"
YAML = """
seed: 1234
lr: 0.5
name: base
big: 1e-3
sizes: [1, 2]
done: False
net: {lr: 1, inner: {depth: 2, width: 3}}
counter: !new:collections.Counter
    x: 1
"""


@pytest.fixture(scope="module", autouse=True)
def switched_on() -> Iterator[None]:
    with parsing.active():
        yield


@pytest.fixture
def train(tmp_path: Path) -> Path:
    return parsing.write(tmp_path, YAML)


def on_the_cpu(outcome: parsing.Outcome) -> Any:
    """The run options, where there is no GPU (their own default is one, before 1.1.0)."""
    if RELEASE < (1, 1, 0):
        outcome.options["device"] = "cpu"
    return outcome.options


TRUE: List[Any] = [
    ([f"--{FLAG}"], []),
    ([f"--{FLAG}=True"], []),
    ([f"--{FLAG}=true"], []),
    ([f"--{FLAG}", "True"], []),
    ([], [f"--{FLAG}", "True"]),
    ([], [f"--{FLAG}"]),
    ([], [f"--{FLAG}=1"]),
    (["--find-unused-parameters"], []),
    (["--find-unused-parameters=yes"], []),
    (["--find_unused"], []),
    (["--find"], []),
    (["--find_unused=on"], []),
]


@pytest.mark.parametrize(("after", "front"), TRUE)
def test_the_flag_is_true_in_every_spelling(after: List[str], front: List[str], train: Path) -> None:
    words = [*front, train, *after]
    without_ddpfix = unpatched(*words)
    arrives = without_ddpfix.error is None and without_ddpfix.get(FLAG) is True and without_ddpfix.overrides == ""
    exact = [f"--{FLAG}"] in (after, front)
    prefix = after in (["--find_unused"], ["--find"])
    if RELEASE >= (1, 1, 0):
        # An abbreviation is parsed, and then not noted as typed: Brain does not look at it.
        arrives = arrives and FLAG in without_ddpfix.typed
    assert arrives == (exact or (prefix and RELEASE < (1, 1, 0)))
    if words[1:] == [f"--{FLAG}=True"]:
        # The published advice.
        assert f"argument --{FLAG}: ignored explicit argument 'True'" in without_ddpfix.printed

    outcome = patched(*words)
    assert (outcome.error, outcome.path, outcome.overrides) == (None, str(train), "")
    assert outcome.get(FLAG) is True
    assert outcome.typed == [FLAG]
    assert patch.user_value(outcome.options, {FLAG: False}, FLAG) == (True, True)
    assert getattr(parsing.brain(on_the_cpu(outcome), {FLAG: False}), FLAG) is True


@pytest.mark.parametrize("words", [[f"--{FLAG}=False"], [f"--{FLAG}", "no"], ["--find_unused=0"], [f"--{FLAG}=off"]])
def test_an_explicit_false_is_one(words: List[str], train: Path) -> None:
    assert unpatched(train, *words).error == ("exit 2" if words[-1] != "no" else None)
    outcome = patched(train, *words)
    assert (outcome.error, outcome.get(FLAG), outcome.typed, outcome.overrides) == (None, False, [FLAG], "")
    assert patch.user_value(outcome.options, {FLAG: True}, FLAG) == (True, False)
    assert getattr(parsing.brain(on_the_cpu(outcome), {FLAG: True}), FLAG) is False


@pytest.mark.parametrize("words", [[f"--{FLAG}=maybe"], [f"--{FLAG}", "maybe"], ["--debug=maybe"]])
def test_no_truth_value(words: List[str], train: Path) -> None:
    outcome = patched(train, *words)
    assert outcome.error == "exit 2"
    name = words[0].partition("=")[0]
    assert f"error: {name}=maybe: use true or false" in outcome.printed


def flags() -> List[str]:
    """The release's own truth values, by its help: those that stand without a value."""
    from ddpfix.patches.speechbrain import parser

    owner = sys.modules["speechbrain.core"]
    if RELEASE >= (1, 1, 0):
        owner = sys.modules["speechbrain.utils.run_opts"].RunOptions
    known = parser.options(parser.of(owner)).values()
    # A GPU is required as soon as data_parallel_backend is parsed.
    skipped = {"help", "data_parallel_backend"}
    return sorted(option.name for option in known if option.kind == "flag" and option.name not in skipped)


@pytest.mark.parametrize("name", flags())
def test_all_truth_values_take_true_and_false(name: str, train: Path) -> None:
    for spelling in (f"--{name}", f"--{name}=True", f"--{name.replace('_', '-')}=true"):
        outcome = patched(train, spelling)
        assert (outcome.error, outcome.get(name), outcome.typed) == (None, True, [name])
    plain = unpatched(train, f"--{name}")
    if plain.error is None and not isinstance(plain.get(name), list):
        assert as_unpatched(plain.options) == as_unpatched(patched(train, f"--{name}").options)
    for spelling in (f"--{name}=False", f"--{name.replace('_', '-')}=no"):
        outcome = patched(train, spelling)
        assert (outcome.error, outcome.get(name), outcome.typed) == (None, False, [name])
    # Where the release takes any text for True, False is True; elsewhere the text is refused, or names another flag.
    wrong = unpatched(train, f"--{name}=False")
    assert wrong.error == "exit 2" or wrong.get(name) in (True, [True])


def test_abbreviations(train: Path) -> None:
    outcome = patched(train, "--max_grad=2.5")
    assert (outcome.get("max_grad_norm"), outcome.typed) == (2.5, ["max_grad_norm"])
    if RELEASE >= (1, 1, 0):
        assert unpatched(train, "--max_grad=2.5").typed == []
    outcome = patched(train, "--debug_=3")
    assert outcome.error == "exit 2"
    assert "ambiguous option: --debug_" in outcome.printed


ORDINARY: List[List[str]] = [
    [],
    ["--seed=5"],
    ["--seed", "5", "--lr=-0.5"],
    ["--lr", "-3", "--name", "x"],
    ["--name=with space"],
    ["--name", "two words"],
    ["--name='quoted'", '--big="1"'],
    ["--sizes=[3, 4]"],
    ["--sizes", "[3,", "4]"],
    ["--net={lr: 2, inner: {depth: 3}}"],
    ["--name=null", "--big=1e-5"],
    ["--name="],
    ["--counter={x: 3}", "--done=True"],
    ["--debug"],
    ["--debug", "--debug_batches=3", "--debug_epochs", "1", "--seed", "7"],
    ["--device=cpu"],
    ["--device", "cuda:3", "--lr=1"],
    ["--max_grad_norm", "-1", "--nonfinite_patience=0"],
    ["--jit_module_keys", "enc", "dec", "--seed=1"],
    ["--seed=1", "--jit_module_keys=enc"],
    ["--distributed_backend=gloo", "--ckpt_interval_minutes=15"],
    ["--log_config=log.yaml", "--seed=0"],
    ["--max_grad_norm=3", "--max_grad_norm=4"],
    ["--debug_batches=x"],
    ["--debug_batches"],
    ["--help"],
]


@pytest.mark.parametrize("words", ORDINARY)
@pytest.mark.parametrize("front", [False, True])
def test_what_is_right_comes_out_the_same(words: List[str], front: bool, train: Path) -> None:
    line = [*words, train] if front else [train, *words]
    before, now = unpatched(*line), patched(*line)
    if front and before.path != str(train):
        # Where a value is a word of its own, or the last of many, the release takes the wrong word for the yaml.
        return
    assert (now.path, now.overrides, now.error) == (before.path, before.overrides, before.error)
    if before.error is None:
        assert as_unpatched(now.options) == as_unpatched(before.options)
        assert isinstance(now.options, type(before.options))
    else:
        assert now.printed == before.printed


@pytest.mark.skipif(RELEASE < (0, 5, 13), reason="no such option")
def test_the_step_limit_is_a_number(train: Path) -> None:
    stock = unpatched(train, "--optimizer_step_limit=3").get("optimizer_step_limit")
    assert stock == (3 if RELEASE < (1, 1, 0) else "3")
    assert patched(train, "--optimizer_step_limit=3").get("optimizer_step_limit") == 3


def test_without_a_readable_yaml_nothing_is_lost(tmp_path: Path) -> None:
    for words in (["none.yaml", "--zz=1"], [parsing.write(tmp_path, "a: [1\n"), "--zz", "2"], [], ["--debug"]):
        before, now = unpatched(*words), patched(*words)
        assert (now.path, now.overrides, now.error) == (before.path, before.overrides, before.error)


def test_the_yaml_behind_a_value(train: Path) -> None:
    assert unpatched("--lr", "5", train).path == "5"
    outcome = patched("--lr", "5", train, "--done=True")
    assert (outcome.path, outcome.overrides) == (str(train), "lr: 5\ndone: True")


def test_arguments_of_the_command_line_by_themselves(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", str(train), f"--{FLAG}=True"])
    assert speechbrain.parse_arguments()[1][FLAG] is True


def test_user_value(train: Path) -> None:
    typed = patched(train, f"--{FLAG}=False").options
    nothing = patched(train).options
    assert patch.user_value(typed, {FLAG: True}, FLAG) == (True, False)
    assert patch.user_value(nothing, {}, FLAG) == (False, None)
    assert patch.user_value(nothing, {FLAG: True}, FLAG) == (True, True)
    assert patch.user_value(nothing, {FLAG: None}, FLAG) == (False, None)
    assert patch.user_value(nothing, {FLAG: "False"}, FLAG) == (True, False)
    assert patch.user_value(None, None, FLAG) == (False, None)
    assert patch.user_value({FLAG: True}, {FLAG: False}, FLAG) == (True, True)
    # The release's own parser, which does not note what was typed before 1.1.0.
    assert patch.user_value(unpatched(train).options, {FLAG: True}, FLAG) == (True, True)
    assert patch.user_value(unpatched(train, f"--{FLAG}").options, {FLAG: False}, FLAG) == (True, True)
    assert patch.user_value(unpatched(train).options, {}, FLAG) == (False, None)


def test_run_options_stay_a_dict(train: Path) -> None:
    options: Any = patched(train, f"--{FLAG}=True", "--device=cpu").options
    if RELEASE >= (1, 1, 0):
        assert type(options).__name__ == "RunOptions"
        assert pickle.loads(pickle.dumps(options)) == options
        return
    assert isinstance(options, dict)
    # A copy is a plain dict, which needs no ddpfix.
    twins: Any = (pickle.loads(pickle.dumps(options)), copy.copy(options), copy.deepcopy(options), options.copy())
    assert all(type(twin) is dict and twin == options for twin in twins)


def test_overrides_off_leaves_the_release_alone(train: Path) -> None:
    ddpfix.deactivate()
    try:
        with parsing.active(overrides="off"):
            assert speechbrain.parse_arguments is UNPATCHED[0]
    finally:
        ddpfix.activate()
