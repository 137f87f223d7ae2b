"""What is given to ``--override_config`` arrives, or the run ends and says what is accepted; a False is one.

``wenet/utils/config.py`` needs nothing of WeNet, so that of every tree is loaded here, one beside the other.
"""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any, Dict, Iterator, List

import pytest
from ddpfix.patches.wenet import overrides

from ddpfix.patching.site import Site
from tests.wenet import trees

pytestmark = pytest.mark.patches("wenet.overrides")

# The file has been the same since 2.0.0, and so one stand-in has it.
TREES = trees.every(("v3",), trees.since("v2.0.0"))
CONFIG: Dict[str, Any] = {
    "accum_grad": 1,
    "grad_clip": 5,
    "model": "asr_model",
    "langs": ["zh", "en"],
    "sizes": [1, 2],
    "steps": [0.5],
    "cmvn": None,
    "optim_conf": {"lr": 0.002, "betas": [0.9, 0.98]},
    "dataset_conf": {"shuffle": False, "filter_conf": {"min_length": 10}, "empty": None},
    "tokenizer_conf": {"special_tokens": {"<blank>": 0}, 1: "one"},
}


@pytest.fixture(params=TREES)
def unpatched(request: Any) -> ModuleType:
    spec = importlib.util.spec_from_file_location("wenet_utils_config", request.param / "wenet" / "utils" / "config.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def ours(unpatched: ModuleType) -> Iterator[ModuleType]:
    site = Site("test")
    was = vars(unpatched)["override_config"]
    overrides.read(site, unpatched, None)
    yield unpatched
    assert site.undo() == []
    assert vars(unpatched)["override_config"] is was


def given(module: ModuleType, *items: str) -> Any:
    before = copy.deepcopy(CONFIG)
    result = module.override_config(CONFIG, list(items))
    assert before == CONFIG
    return result


def value(config: Dict[str, Any], path: str) -> Any:
    section: Any = config
    for part in path.split("."):
        section = section[int(part) if part.isdigit() else part]
    return section


SAME = {
    "accum_grad 2": ("accum_grad", 2),
    "optim_conf.lr 1e-4": ("optim_conf.lr", 1e-4),
    "optim_conf.lr 1": ("optim_conf.lr", 1.0),
    "model other": ("model", "other"),
    "dataset_conf.shuffle true": ("dataset_conf.shuffle", True),
    "dataset_conf.shuffle True": ("dataset_conf.shuffle", True),
    "dataset_conf.shuffle false": ("dataset_conf.shuffle", False),
    "tokenizer_conf.special_tokens.<blank> 3": ("tokenizer_conf.special_tokens.<blank>", 3),
    "  accum_grad   2 ": ("accum_grad", 2),
}


@pytest.mark.parametrize("item", SAME)
def test_what_the_original_reads_is_the_same(item: str, unpatched: ModuleType) -> None:
    path, expected = SAME[item]
    before = given(unpatched, item)
    site = Site("test")
    overrides.read(site, unpatched, None)
    result = given(unpatched, item)
    site.undo()
    assert result == before
    assert value(result, path) == expected and type(value(result, path)) is type(expected)


# (path, what it means, what unpatched WeNet makes of it: an error, a value, or nothing at all)
LOST: Dict[str, Any] = {
    "accum_grad=2": ("accum_grad", 2, 1),
    "optim_conf.lr = 1e-4": ("optim_conf.lr", 1e-4, 0.002),
    "model a b c": ("model", "a b c", "asr_model"),
    "model 'a b'": ("model", "a b", "asr_model"),
    "dataset_conf.shuffle TRUE": ("dataset_conf.shuffle", True, False),
    "dataset_conf.shuffle 1": ("dataset_conf.shuffle", True, False),
    "dataset_conf.shuffle yes": ("dataset_conf.shuffle", True, False),
    "dataset_conf.shuffle=on": ("dataset_conf.shuffle", True, False),
    "save_interval 500": ("save_interval", 500, KeyError),
    "save_interval=500": ("save_interval", 500, ...),
    "dataset_conf.filter_conf.max_length 100": ("dataset_conf.filter_conf.max_length", 100, KeyError),
    "new_conf.deep.rate 1e-3": ("new_conf.deep.rate", 1e-3, KeyError),
    "new_key text": ("new_key", "text", KeyError),
    "cmvn global_cmvn": ("cmvn", "global_cmvn", TypeError),
    "cmvn 3": ("cmvn", 3, TypeError),
    "dataset_conf.empty.key 3": ("dataset_conf.empty.key", 3, TypeError),
    "accum_grad 2.0": ("accum_grad", 2, ValueError),
    "accum_grad 1e1": ("accum_grad", 10, ValueError),
    "grad_clip 0.5": ("grad_clip", 0.5, ValueError),
    "langs zh": ("langs", ["zh"], ["z", "h"]),
    "langs no,en": ("langs", ["no", "en"], ["n", "o", ",", "e", "n"]),
    "langs [zh, 'ja']": ("langs", ["zh", "ja"], ["zh", "en"]),
    "sizes 3,4": ("sizes", [3, 4], ["3", ",", "4"]),
    "steps [1e-2, 2]": ("steps", [0.01, 2], [0.5]),
    "tokenizer_conf.1 two": ("tokenizer_conf.1", "two", KeyError),
    "model null": ("model", None, "null"),
    "accum_grad ~": ("accum_grad", None, ValueError),
}


@pytest.mark.parametrize("item", LOST)
def test_what_the_original_loses_arrives(item: str, ours: ModuleType) -> None:
    path, expected, lost = LOST[item]
    inner = ours.override_config.__wrapped__
    if isinstance(lost, type):
        with pytest.raises(lost):
            inner(CONFIG, [item])
    elif lost is ...:
        assert inner(CONFIG, [item]) == CONFIG
    else:
        assert value(inner(CONFIG, [item]), path) == lost
    result = value(given(ours, item), path)
    assert result == expected and type(result) is type(expected)


REFUSED = {
    "accum_grad": "no key and value. Write ",
    "accum_grad=": "no key and value. Write ",
    "accum_grad two": "accum_grad is 1, and 'two' is not an integer (or null)",
    "accum_grad 2 max_epoch 3": "accum_grad is 1, and '2 max_epoch 3' is not an integer",
    "optim_conf.lr fast": "optim_conf.lr is 0.002, and 'fast' is not a number",
    "dataset_conf.shuffle maybe": "Use one of true, yes, on, 1, false, no, off, 0",
    "optim_conf 3": "optim_conf is a section. Set one of its keys: optim_conf.lr, optim_conf.betas",
    "acum_grad 2": "the YAML has no acum_grad. Did you mean accum_grad?",
    "lr 0.1": "the YAML has no lr. Did you mean optim_conf.lr?",
    "optim_con.lr 3": "Did you mean optim_conf.lr?",
    "optim_conf.lr.x 3": "optim_conf.lr is 0.002 and has no keys",
}


@pytest.mark.parametrize("item", REFUSED)
def test_what_means_nothing_ends_the_run(item: str, ours: ModuleType) -> None:
    with pytest.raises(ValueError) as caught:
        given(ours, item)
    assert str(caught.value).startswith(f"--override_config {item!r}: ")
    assert REFUSED[item] in str(caught.value)


def test_several_are_applied_in_order(ours: ModuleType) -> None:
    result = given(ours, "accum_grad 2", "new.a 1", "new.b=2", "accum_grad=4")
    assert result["accum_grad"] == 4 and result["new"] == {"a": 1, "b": 2}


WORDS = ["True", "true", "1", "yes", "False", "false", "0", "no", "OFF", "", "maybe"]
INTENDED = {word: word.lower() in ("true", "1", "yes") for word in WORDS if word != "maybe"}


@pytest.fixture(scope="module", params=trees.every(("v3",), trees.since("v3.1.0")))
def results(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Dict[str, List[Any]]:
    tree: Path = request.param
    scenarios = [
        trees.scenario("unpatched", "flags", words=WORDS),
        trees.scenario("ours", "flags", {"overrides": "apply"}, words=WORDS),
        trees.scenario("off", "flags", {"overrides": "off"}, words=WORDS),
    ]
    return trees.run(tree, scenarios, tmp_path_factory.mktemp("flags"))


def test_unpatched_takes_every_word_for_true(results: Dict[str, List[Any]]) -> None:
    for name in ("unpatched", "off"):
        assert {word: results[name][0][word] for word in WORDS} == {word: [bool(word), bool(word), 8] for word in WORDS}


def test_words_mean_what_they_say(results: Dict[str, List[Any]]) -> None:
    for rank in results["ours"]:
        assert {word: rank[word] for word in INTENDED} == {
            word: [intended, intended, 8] for word, intended in INTENDED.items()
        }
        assert rank["maybe"] == "error"
        assert (
            "argument --use_lora: 'maybe' is neither true nor false. Use one of true, yes, on, 1, false" in rank["log"]
        )
