"""Default, then yaml, then command line: what the yaml says is not shadowed, and what is typed reaches hparams."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import pytest
import speechbrain
import yaml
from ddpfix.patches.speechbrain import yaml_options

from tests.speechbrain import parsing
from tests.speechbrain.parsing import RELEASE, UNPATCHED, patched, unpatched

pytestmark = pytest.mark.patches("speechbrain.yaml_options")

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
ALL, NEW = (0, 5, 4), (1, 1, 0)
SHADOWED: Dict[str, Tuple[Any, Tuple[int, ...], Tuple[int, ...]]] = {
    FLAG: (True, (0, 5, 9), NEW),
    "debug": (True, ALL, NEW),
    "debug_batches": (7, ALL, NEW),
    "debug_epochs": (5, ALL, NEW),
    "distributed_backend": ("gloo", ALL, NEW),
    "data_parallel_backend": (True, ALL, NEW),
    "auto_mix_prec": (True, (0, 5, 5), (0, 5, 11)),
    "noprogressbar": (True, (0, 5, 5), (0, 5, 11)),
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


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


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


def of(outcome: parsing.Outcome, name: str) -> Dict[str, Any]:
    return {name: outcome.values[name]} if name in outcome.values else {}


@pytest.mark.parametrize("name", SHADOWED)
def test_the_yaml_is_not_shadowed(name: str, tmp_path: Path) -> None:
    value, first, end = SHADOWED[name]
    if (name == "data_parallel_backend" and RELEASE >= NEW) or (name == "auto_mix_prec" and RELEASE >= (1, 0, 0)):
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
            # Without what the parser read of the yaml: hparams alone.
            outcome = patched(file, "--device=cpu")
            plain = (
                outcome.options if RELEASE >= NEW else {**outcome.options, **of(unpatched(file, "--device=cpu"), name)}
            )
            assert getattr(parsing.brain(plain, parsing.load(outcome)), name) == value


@pytest.mark.parametrize("name", NOT_SHADOWED)
def test_the_command_line_wins(name: str, tmp_path: Path, active: None) -> None:
    value = NOT_SHADOWED[name]
    file = written(tmp_path, **{name: 1})
    assert getattr(made(unpatched, file, "--device=cpu"), name) == 1
    assert getattr(made(patched, file, "--device=cpu"), name) == 1
    brain = made(patched, file, "--device=cpu", f"--{name}={value}")
    assert (getattr(brain, name), getattr(brain.hparams, name)) == (value, value)


def test_a_typed_default_beats_the_yaml(tmp_path: Path, active: None) -> None:
    file = written(tmp_path, debug_batches=7, debug=True)
    brain = made(patched, file, "--device=cpu", "--debug_batches=2", "--debug=False")
    assert (brain.debug_batches, brain.debug) == (2, False)
    assert (brain.hparams.debug_batches, brain.hparams.debug) == (2, False)


def test_run_options_before_the_yaml_is_loaded(tmp_path: Path) -> None:
    file = written(tmp_path, device="cpu", distributed_backend="gloo")
    with_reference = parsing.write(
        tmp_path, BASE + "backend: gloo\ndistributed_backend: !ref <backend>\ndevice: !apply:os.abort\n", "other.yaml"
    )
    before = unpatched(file)
    assert (before.get("device"), before.get("distributed_backend")) == (None if RELEASE >= NEW else "cuda:0", "nccl")
    with parsing.active():
        now = patched(file)
        assert (now.get("device"), now.get("distributed_backend"), now.typed) == ("cpu", "gloo", [])
        assert made(patched, file).device == "cpu"
        # A reference is followed, also to what is typed; what only a tag's code could tell is left out.
        now = patched(with_reference)
        assert (now.get("device"), now.get("distributed_backend")) == (before.get("device"), "gloo")
        assert patched(with_reference, "--backend=mpi").get("distributed_backend") == "mpi"
        assert patched(with_reference, "--distributed_backend=nccl").get("distributed_backend") == "nccl"


def test_what_only_hparams_can_tell(tmp_path: Path, active: None) -> None:
    file = parsing.write(tmp_path, BASE + "debug_batches: !apply:operator.add [3, 4]\nnoprogressbar: !name:len\n")
    outcome = patched(file, "--device=cpu")
    assert outcome.get("debug_batches") == 2
    assert made(patched, file, "--device=cpu").debug_batches == 7


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
    if RELEASE >= NEW:
        return
    # The parser's dict, changed: what is not as the parser leaves it is the user's.
    changed = {**patched(written(tmp_path)).options, "device": "cpu", "debug_epochs": 4}
    brain = parsing.brain(changed, {"debug_batches": 7, "debug_epochs": 9})
    assert (brain.debug_batches, brain.debug_epochs) == (7, 4)
    assert yaml_options.unshadowed(changed, {}) is changed


def test_what_is_typed_is_in_hparams_and_in_what_is_saved(tmp_path: Path) -> None:
    file = written(tmp_path, max_grad_norm=5.0, debug_batches=3, device="cuda:0")
    words = [file, "--device=cpu", "--max_grad_norm=2.5", "--debug_batches", "4", "--nonfinite_patience=1"]
    by_parser = {}
    for which, parse in (("unpatched", unpatched), ("patched", patched)):
        with parsing.active(overrides="apply" if which == "patched" else "off"):
            outcome = parse(*words)
            brain = parsing.brain(outcome.options, parsing.load(outcome))
            saved = saves(outcome, tmp_path / which)
        names = ("max_grad_norm", "debug_batches", "device")
        values = [[getattr(brain, n), getattr(brain.hparams, n), saved[n]] for n in names]
        assert "nonfinite_patience" not in saved
        by_parser[which] = values
    assert by_parser["unpatched"] == [[2.5, 5.0, 5.0], [4, 3, 3], ["cpu", "cuda:0", "cuda:0"]]
    assert by_parser["patched"] == [[2.5] * 3, [4] * 3, ["cpu"] * 3]


def saves(outcome: parsing.Outcome, folder: Path) -> Dict[str, Any]:
    """The hyperparams.yaml that a recipe leaves behind."""
    hook, handlers = sys.excepthook, list(logging.getLogger().handlers)
    try:
        speechbrain.create_experiment_directory(str(folder), outcome.path, outcome.overrides, save_env_desc=False)
    finally:
        sys.excepthook = hook
        logging.getLogger().handlers[:] = handlers
    text = (folder / "hyperparams.yaml").read_text()
    return dict(yaml.safe_load(text.replace("!new:collections.Counter", "")))


# Spelling, its result on the unpatched release (an error's name, or the loaded value), and the intended value.
SPELLINGS: List[Tuple[List[str], Any, Dict[str, Any]]] = [
    (["--lr=x=y"], {"lr": "x y"}, {"lr": "x=y"}),
    (["--lr", "x=y"], {"lr": "x y"}, {"lr": "x=y"}),
    (["--lr=a=b=c d"], {"lr": "a b c d"}, {"lr": "a=b=c d"}),
    (["--net.lr=2"], "KeyError", {"net": {"lr": 2, "inner": {"depth": 2, "width": 3}}}),
    (["--net.lr", "2"], "KeyError", {"net": {"lr": 2, "inner": {"depth": 2, "width": 3}}}),
    (
        ["--net.lr=2", "--net.inner.depth=4", "--net.inner.width=[1, 2]"],
        "KeyError",
        {"net": {"lr": 2, "inner": {"depth": 4, "width": [1, 2]}}},
    ),
    (["--net={lr: 5}", "--net.inner.depth=4"], "KeyError", {"net": {"lr": 5, "inner": {"depth": 4, "width": 3}}}),
    (["--net.inner.depth=4", "--net={lr: 5}"], "KeyError", {"net": {"lr": 5, "inner": {"depth": 2, "width": 3}}}),
    (
        ["--net.inner={depth: 4}", "--net.inner.width=5"],
        "KeyError",
        {"net": {"lr": 1, "inner": {"depth": 4, "width": 5}}},
    ),
    (["--net.lr=!ref <seed>"], "KeyError", {"net": {"lr": 1234, "inner": {"depth": 2, "width": 3}}}),
    (["--counter.x=5"], "KeyError", {"counter": {"x": 5, "y": 2}}),
    (["--dotted.key=5"], {"dotted.key": 5}, {"dotted.key": 5}),
    (["--lr=1", "--lr=2"], "DuplicateKeyError", {"lr": 2}),
    (["--lr=1", "--seed=3", "--lr", "2"], "DuplicateKeyError", {"lr": 2, "seed": 3}),
    (["--net.lr=1", "--net.lr=2"], "DuplicateKeyError", {"net": {"lr": 2, "inner": {"depth": 2, "width": 3}}}),
    (["--done"], {"done": None}, {"done": True}),
]


@pytest.mark.parametrize(("words", "was", "intended"), SPELLINGS)
def test_overrides_have_the_intended_values(
    words: List[str], was: Any, intended: Dict[str, Any], tmp_path: Path
) -> None:
    file = written(tmp_path)
    without_ddpfix = parsing.run(lambda given: (file, {}, parsing.load(unpatched(*given))), file, *words)
    if isinstance(was, str):
        assert without_ddpfix.error == was
    else:
        assert {name: without_ddpfix.overrides[name] for name in was} == was  # type: ignore[index]
    with parsing.active():
        outcome = patched(file, *words)
        assert outcome.error is None, outcome.printed
        hparams = parsing.load(outcome)
    assert {name: hparams[name] for name in intended} == intended


REFUSED = [
    (["--lr"], "--lr has no value: write --lr=VALUE or --lr VALUE (--lr=null for none)"),
    (["--net.lr"], "--net.lr has no value"),
    (["--lr.x=2"], "--lr.x: lr is no mapping in the yaml; --lr=VALUE sets it"),
    (["--net.lr.x=2"], "--net.lr.x: net.lr is no mapping in the yaml"),
    (["--net=5", "--net.lr=2"], "--net.lr: what else is given for --net is no mapping"),
    (["--net.lr=[1"], "--net.lr=[1 is no yaml value"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_an_invalid_override_ends_with_the_accepted_forms(
    words: List[str], message: str, tmp_path: Path, active: None
) -> None:
    outcome = patched(written(tmp_path), *words)
    assert outcome.error == "exit 2"
    assert f"error: {message}" in outcome.printed


def test_a_part_that_is_new(tmp_path: Path, active: None) -> None:
    with parsing.log_lines() as lines:
        outcome = patched(written(tmp_path), "--net.inner.dept=2")
    assert outcome.loaded == {"net": {"inner": {"dept": 2}}}
    assert lines == ["--net.inner.dept: net.inner has no dept so far; did you mean depth?"]


def test_a_key_that_nobody_knows(tmp_path: Path) -> None:
    file = written(tmp_path)
    for words, hint in ((["--sed=3"], "--seed"), (["--nonfinite_pation=3"], "--nonfinite_patience")):
        with pytest.raises(KeyError) as caught:
            parsing.load(unpatched(file, *words))
        name = words[0].partition("=")[0][2:]
        assert str(caught.value).startswith(f"\"Override '{name}' not found in: ['output_folder', ")
        assert "did you mean" not in str(caught.value)
        with parsing.active():
            outcome = patched(file, *words)
            with pytest.raises(KeyError) as caught:
                parsing.load(outcome)
        assert str(caught.value).startswith(
            f"--{name}: neither the yaml nor this release's run options have it; did you"
        )
        assert hint in str(caught.value)


def test_overrides_that_need_not_match(tmp_path: Path, active: None) -> None:
    from hyperpyyaml import load_hyperpyyaml

    outcome = patched(written(tmp_path), "--brand_new=3")
    with open(outcome.path) as file:
        assert load_hyperpyyaml(file, outcome.overrides, overrides_must_match=False)["brand_new"] == 3
    with pytest.raises(KeyError, match="Override 'mine' not found"):
        load_hyperpyyaml("a: 1", {"mine": 2})


def test_undo(tmp_path: Path) -> None:
    import hyperpyyaml.core as home

    update, built = home.recursive_update, vars(speechbrain.Brain)["__init__"]
    with parsing.active():
        assert home.recursive_update is not update
    assert home.recursive_update is update
    assert vars(speechbrain.Brain)["__init__"] is built
    assert speechbrain.parse_arguments is UNPATCHED[0]
