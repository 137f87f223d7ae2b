"""Default, then yaml, then command line: what the yaml says is not shadowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import pytest
import yaml

from tests.speechbrain import parsing
from tests.speechbrain.parsing import RELEASE, no_launcher, patched, unpatched  # noqa: F401

pytestmark = [pytest.mark.patches("speechbrain.options"), pytest.mark.usefixtures("no_launcher")]

FLAG = "find_unused_parameters"
BASE = """
output_folder: OUT
seed: 1234
lr: 0.5
done: False
net: {lr: 1, inner: {depth: 2, width: 3}}
counter: !new:collections.Counter
    x: 1
    y: 2
dotted.key: 1
"""
# Yaml values of run options, and in which releases the parser's default shadows them (first, end).
ALL, NEW = (0, 5, 11), (1, 1, 0)
SHADOWED: Dict[str, Tuple[Any, Tuple[int, ...], Tuple[int, ...]]] = {
    FLAG: (True, ALL, NEW),
    "debug": (True, ALL, NEW),
    "debug_batches": (7, ALL, NEW),
    "debug_epochs": (5, ALL, NEW),
    "distributed_backend": ("gloo", ALL, NEW),
    "data_parallel_backend": (True, ALL, NEW),
    "debug_persistently": (True, (0, 5, 14), NEW),
    "tqdm_colored_bar": (True, (0, 5, 14), NEW),
    "remove_vector_weight_decay": (True, (0, 5, 15), NEW),
    "test_only": (True, (0, 5, 16), NEW),
    "compile": (True, (0, 5, 16), NEW),
    "jit": (True, (0, 5, 16), NEW),
    "skip_nonfinite_grads": (True, (1, 0, 0), NEW),
    "profile_warmup": (9, (1, 0, 0), NEW),
    "profile_steps": (8, (1, 0, 0), NEW),
}
NOT_SHADOWED: Dict[str, Any] = {"max_grad_norm": 2.5, "nonfinite_patience": 9, "ckpt_interval_minutes": 15}


@pytest.fixture
def active() -> Iterator[None]:
    with parsing.active():
        yield


def written(folder: Path, **values: Any) -> Path:
    # Yaml's own quotes around texts, and its words for truth values.
    lines = "".join(f"{name}: {yaml.safe_dump(value).splitlines()[0]}\n" for name, value in values.items())
    return parsing.write(folder, BASE.replace("OUT", str(folder / "out")) + lines)


def made(parse: Any, *words: Any) -> Any:
    outcome = parse(*words)
    assert outcome.error is None, outcome.printed
    return parsing.brain(outcome.options, parsing.load(outcome))


@pytest.mark.parametrize("name", SHADOWED)
def test_the_yaml_is_not_shadowed(name: str, tmp_path: Path) -> None:
    value, first, end = SHADOWED[name]
    if name == "data_parallel_backend" and RELEASE >= NEW:
        pytest.skip("Brain itself refuses it on the CPU")
    file = written(tmp_path, **{name: value})
    without_ddpfix = made(unpatched, file, "--device=cpu")
    known = hasattr(without_ddpfix, name)
    if known:
        assert (getattr(without_ddpfix, name) == value) == (not first <= RELEASE < end)
    with parsing.active():
        outcome = patched(file, "--device=cpu")
        assert (outcome.get(name) == value) == (known or name == FLAG)
        assert name not in outcome.typed
        if known:
            assert getattr(made(patched, file, "--device=cpu"), name) == value


@pytest.mark.parametrize("name", NOT_SHADOWED)
def test_the_command_line_wins(name: str, tmp_path: Path, active: None) -> None:
    value = NOT_SHADOWED[name]
    file = written(tmp_path, **{name: 1})
    assert getattr(made(unpatched, file, "--device=cpu"), name) == 1
    assert getattr(made(patched, file, "--device=cpu"), name) == 1
    assert getattr(made(patched, file, "--device=cpu", f"--{name}={value}"), name) == value


def test_a_typed_default_beats_the_yaml(tmp_path: Path, active: None) -> None:
    file = written(tmp_path, debug_batches=7, debug=True)
    brain = made(patched, file, "--device=cpu", "--debug_batches=2", "--debug=False")
    assert (brain.debug_batches, brain.debug) == (2, False)


def test_run_options_before_the_yaml_is_loaded(tmp_path: Path) -> None:
    file = written(tmp_path, device="cpu", distributed_backend="gloo")
    with_tags = parsing.write(
        tmp_path, BASE + "distributed_backend: !ref <lr>\ndevice: !apply:os.abort\n", "other.yaml"
    )
    before = unpatched(file)
    assert (before.get("device"), before.get("distributed_backend")) == (None if RELEASE >= NEW else "cuda:0", "nccl")
    with parsing.active():
        now = patched(file)
        assert (now.get("device"), now.get("distributed_backend"), now.typed) == ("cpu", "gloo", [])
        assert made(patched, file).device == "cpu"
        # What only hparams can tell is left out.
        now = patched(with_tags)
        assert (now.get("device"), now.get("distributed_backend")) == (before.get("device"), "nccl")


def test_something_else_of_that_name_stays_out(tmp_path: Path, active: None) -> None:
    if RELEASE >= NEW:
        pytest.skip("the release takes it for the run option")
    file = parsing.write(tmp_path, BASE + "debug: !new:collections.Counter\n    x: 1\ndebug_batches: {a: 1}\n")
    brain = made(patched, file, "--device=cpu")
    assert (brain.debug, brain.debug_batches) == (False, 2)
    typed = patched(file, "--device=cpu", "--debug")
    assert (typed.get("debug"), typed.overrides) == (True, "")


def test_a_quoted_truth_value(tmp_path: Path, active: None) -> None:
    file = parsing.write(tmp_path, BASE + 'debug: "False"\n')
    assert patched(file).get("debug") is False
    if RELEASE < NEW:
        assert made(patched, file, "--device=cpu").debug is False


def test_run_options_of_the_users_own(tmp_path: Path, active: None) -> None:
    hparams = {"debug_batches": 7, FLAG: True, "device": "cpu"}
    brain = parsing.brain({"debug_batches": 2, FLAG: False, "device": "cpu"}, hparams)
    assert (brain.debug_batches, getattr(brain, FLAG, False)) == (2, False)


SEARCH = """
test_beam: 66
test_beam_search: {beam_size: 100, prune_history: True, alpha: !ref <lr>}
valid_search: !new:collections.Counter
    beam: 3
test_search: !new:collections.Counter
    beam: !ref <test_beam>
deep: {inner: {kenlm_model_path: a}}
"""


@pytest.mark.parametrize(
    "typed, within, instead",
    [
        # Issue 2729: prune_history and kenlm_model_path of test_beam_search.
        ("--prune_history=False", "test_beam_search", ["--test_beam_search={prune_history: False}"]),
        ("--kenlm_model_path=lm.arpa", "deep.inner", ["--deep={inner: {kenlm_model_path: lm.arpa}}"]),
        ("--beam_size=5", "test_beam_search", ["--test_beam_search={beam_size: 5}"]),
        ("--alpha=0.25", "test_beam_search", ["--lr=0.25"]),
        ("--beam=5", "valid_search and test_search", ["--valid_search={beam: 5}", "--test_beam=5"]),
    ],
)
def test_a_key_one_level_down_is_named(typed: str, within: str, instead: List[str], tmp_path: Path) -> None:
    file = parsing.write(tmp_path, BASE.replace("OUT", str(tmp_path / "out")) + SEARCH)
    key, _, value = typed[2:].partition("=")
    with pytest.raises(KeyError):
        parsing.load(unpatched(file, typed))
    with parsing.active(), parsing.log_lines() as lines:
        patched(file, typed)
        told = " ".join(lines)
        assert f"{typed}: train.yaml has {key} in {within}, not at the top level. Type " in told
        assert all("='".join(each.split("=", 1)) in told if "{" in each else each in told for each in instead)
        lines.clear()
        loaded = str(parsing.load(patched(file, *instead)))
        assert not lines and f"'{key}': {yaml.safe_load(value)!r}" in loaded


def test_a_near_key_of_the_yaml_is_named(tmp_path: Path, active: None) -> None:
    file = parsing.write(tmp_path, BASE)
    with parsing.log_lines() as lines:
        patched(file, "--outputfolder=b", "--seed=2", "--net={lr: 2}", "--dotted.key=3", "--nothing_like_it=1")
    assert lines == ["--outputfolder=b: train.yaml has no outputfolder; did you mean output_folder?"]
