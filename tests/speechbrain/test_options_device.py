"""Device, launcher and precision: what a user types is understood by every release, or refused with the reason."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

from tests.speechbrain import parsing
from tests.speechbrain.parsing import RELEASE, no_launcher, patched, unpatched  # noqa: F401

NEW, BY_ENVIRONMENT = (1, 1, 0), (0, 5, 16)
# Before it, Brain takes the last letter of the device for a number.
BASE = "seed: 1\nlr: 0.5\n"
pytestmark = [pytest.mark.patches("speechbrain.options"), pytest.mark.usefixtures("no_launcher")]


@pytest.fixture(autouse=True)
def active() -> Iterator[None]:
    with parsing.active():
        yield


@pytest.fixture
def train(tmp_path: Path) -> Path:
    return parsing.write(tmp_path, BASE)


def launched(patch: pytest.MonkeyPatch, rank: int = 1, size: int = 2) -> None:
    for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}.items():
        patch.setenv(name, str(value))


# What is typed, and what the unpatched release makes of it under LOCAL_RANK=1 before 1.1.0 and from then on.
DEVICES = {
    "cuda": ("cud1", "cuda"),
    "cuda:0": ("cuda:1", "cuda:0"),
    "cuda:10": ("cuda:11", "cuda:10"),
}


@pytest.mark.parametrize("device", DEVICES)
def test_each_rank_has_its_own_gpu(device: str, train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch)
    assert unpatched(train, f"--device={device}").get("device") == DEVICES[device][RELEASE >= NEW]
    outcome = patched(train, f"--device={device}")
    assert (outcome.get("device"), outcome.typed[-1 if RELEASE >= BY_ENVIRONMENT else 0]) == ("cuda:1", "device")


def test_other_devices_stay(tmp_path: Path, train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    # Without a launcher.
    assert patched(train, "--device=cuda:3").get("device") == "cuda:3"
    assert patched(train, "--device=cuda").get("device") == unpatched(train, "--device=cuda").get("device") == "cuda"
    launched(monkeypatch)
    for parse in (unpatched, patched):
        assert parse(train, "--device", "cpu").get("device") == "cpu"
    assert patched(train).get("device") == unpatched(train).get("device")
    assert patched(parsing.write(tmp_path, BASE + "device: cuda\n")).get("device") == "cuda:1"
    if RELEASE < NEW:
        # The release itself counts GPUs by rank.
        return
    # A GPU of one's own.
    launched(monkeypatch, 0, 1)
    assert patched(train, "--device=cuda:3").get("device") == "cuda:3"
    launched(monkeypatch, 1, 2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert patched(train, "--device=cuda:0").get("device") == "cuda:0"


@pytest.mark.parametrize("spelling", ["--local-rank=1", "--local_rank=1"])
@pytest.mark.parametrize("front", [False, True])
def test_the_launchers_own_option(spelling: str, front: bool, train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch)
    words = [spelling, train] if front else [train, spelling]
    known = RELEASE < BY_ENVIRONMENT and ("_" in spelling or RELEASE == (0, 5, 15))
    before = unpatched(*words)
    assert (before.error, before.overrides) == (None, "" if known else f"{spelling[2:-2]}: 1")
    outcome = patched(*words)
    assert (outcome.error, outcome.overrides) == (None, "")
    assert outcome.get("local_rank") == (1 if RELEASE < BY_ENVIRONMENT else None)


def test_the_rank_that_only_an_old_launcher_tells(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "")
    assert patched(train, "--local-rank=1").error is None
    assert os.environ["LOCAL_RANK"] == ("1" if RELEASE >= BY_ENVIRONMENT else "")


@pytest.mark.parametrize("word", ["--distributed_launch", "--distributed_launch=True", "--distributed-launch"])
def test_distributed_launch(word: str, train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch)
    before = unpatched(train, word)
    works = RELEASE < BY_ENVIRONMENT and word == "--distributed_launch"
    assert (before.error is None and before.get("distributed_launch") is True and before.overrides == "") == works
    outcome = patched(train, word)
    assert (outcome.error, outcome.overrides) == (None, "")
    if RELEASE < BY_ENVIRONMENT:
        assert (outcome.get("distributed_launch"), outcome.get("local_rank")) == (True, 1)
    else:
        assert "distributed_launch" not in outcome.typed


def test_torchrun_alone(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch, rank=0)
    before, now = unpatched(train), patched(train)
    if RELEASE >= BY_ENVIRONMENT:
        assert parsing.as_unpatched(now.options) == parsing.as_unpatched(before.options)
        return
    assert (before.get("distributed_launch"), before.get("local_rank")) == (False, None)
    assert (now.get("distributed_launch"), now.get("local_rank")) == (True, 0)
    off = patched(train, "--distributed_launch=False")
    assert (off.get("distributed_launch"), off.get("local_rank")) == (False, None)
    launched(monkeypatch, rank=0, size=1)
    assert parsing.as_unpatched(patched(train).options) == parsing.as_unpatched(unpatched(train).options)


def test_distributed_launch_in_the_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if RELEASE >= BY_ENVIRONMENT:
        pytest.skip("the environment decides")
    on = parsing.write(tmp_path, BASE + "distributed_launch: True\n")
    off = parsing.write(tmp_path, BASE + "distributed_launch: False\n", "off.yaml")
    assert patched(on).get("distributed_launch") is False
    launched(monkeypatch)
    assert unpatched(on).get("distributed_launch") is False
    outcome = patched(on)
    assert (outcome.get("distributed_launch"), outcome.get("local_rank")) == (True, 1)
    assert patched(off).get("distributed_launch") is False


# Precision.

OLD = (1, 0, 0)


def brain(train: Path, *words: str) -> Any:
    outcome = patched(train, "--device=cpu", *words)
    assert outcome.error is None, outcome.printed
    return parsing.brain(outcome.options, parsing.load(outcome))


def mixed(brain: Any) -> Dict[str, Any]:
    names = ("precision", "auto_mix_prec", "bfloat16_mix_prec")
    return {name: getattr(brain, name) for name in names if hasattr(brain, name)}


@pytest.mark.parametrize("value", ["fp16", "bf16", "fp32"])
def test_precision(value: str, train: Path) -> None:
    before = unpatched(train, f"--precision={value}")
    if RELEASE < OLD:
        with pytest.raises(KeyError, match="Override 'precision' not found"):
            parsing.load(before)
        if value == "bf16" and RELEASE < (0, 5, 14):
            outcome = patched(train, f"--precision={value}")
            assert outcome.error == "exit 2"
            assert "--precision=bf16: bf16 needs SpeechBrain 0.5.14" in outcome.printed
            return
        expected = {"auto_mix_prec": value == "fp16", "bfloat16_mix_prec": value == "bf16"}
        with parsing.log_lines() as lines:
            options = mixed(brain(train, f"--precision={value}"))
        assert options == {name: expected[name] for name in options}
        assert ("auto_mix_prec" in options, "bfloat16_mix_prec" in options) == (True, RELEASE >= (0, 5, 14))
        trains = "bf16" if RELEASE >= (0, 5, 14) else "fp32"
        fp16 = f"precision=fp16 means --auto_mix_prec in this release, which trains in {trains} on the CPU"
        bf16 = "precision=bf16 means --bfloat16_mix_prec in this release"
        assert lines == {"fp16": [fp16], "bf16": [bf16], "fp32": []}[value]
        return
    assert before.error is None
    if value == "fp16":
        # The release does not do that on the CPU.
        with pytest.raises(ValueError, match="fp16"):
            brain(train, "--precision=fp16")
    else:
        assert mixed(brain(train, f"--precision={value}"))["precision"] == value


def test_a_precision_that_nobody_knows(train: Path) -> None:
    assert unpatched(train, "--precision=half").error == ("exit 2" if RELEASE >= NEW else None)
    outcome = patched(train, "--precision=half")
    assert outcome.error == ("exit 2" if RELEASE < OLD or RELEASE >= NEW else None)
    assert RELEASE >= OLD or "error: --precision=half: use one of fp32, fp16, bf16" in outcome.printed


def test_abbreviated_precision(train: Path) -> None:
    assert RELEASE < NEW or unpatched(train, "--prec=fp32").typed == []
    outcome = patched(train, "--prec=fp32")
    assert (outcome.get("precision"), outcome.overrides) == ("fp32", "") and "precision" in outcome.typed


def test_the_yamls_precision(tmp_path: Path) -> None:
    file = parsing.write(tmp_path, BASE + "precision: fp32\n")
    before = unpatched(file, "--precision=fp16")
    assert parsing.load(before)["precision"] == ("fp16" if RELEASE < OLD else "fp32")
    if RELEASE < OLD:
        assert not before.get("auto_mix_prec")
    outcome = patched(file, "--precision=fp16")
    assert parsing.load(outcome)["precision"] == parsing.load(before)["precision"]
    assert outcome.get("auto_mix_prec" if RELEASE < OLD else "precision") in (True, "fp16")


def test_what_is_typed_beats_the_old_names_in_the_yaml(tmp_path: Path) -> None:
    file = parsing.write(tmp_path, BASE + "auto_mix_prec: True\n")
    made = mixed(brain(file, "--precision=fp32"))
    assert made.get("precision", "fp32") == "fp32" and not made.get("auto_mix_prec")
    if RELEASE >= OLD:
        # Without ddpfix auto_mix_prec wins, which the CPU refuses.
        outcome = unpatched(file, "--device=cpu", "--precision=fp32")
        with pytest.raises(ValueError, match="fp16"):
            parsing.brain(outcome.options, parsing.load(outcome))
        return
    assert brain(file).auto_mix_prec is True
    newer = parsing.write(tmp_path, BASE + "precision: fp16\n")
    assert not parsing.brain(unpatched(newer, "--device=cpu").options, parsing.load(unpatched(newer))).auto_mix_prec
    assert brain(newer).auto_mix_prec is True and brain(newer, "--auto_mix_prec=False").auto_mix_prec is False
    theirs = parsing.write(tmp_path, BASE + "precision: 3\n")
    outcome = patched(theirs, "--precision=4")
    assert (outcome.overrides, outcome.typed) == ("precision: 4", [])
    assert parsing.load(outcome)["precision"] == 4


@pytest.mark.parametrize("value", ["fp16", "bf16"])
def test_the_named_precision_trains_on_the_cpu(value: str, train: Path) -> None:
    import torch

    if RELEASE >= OLD and value == "fp16" or RELEASE < (0, 5, 14) and value == "bf16":
        pytest.skip("not for this release")
    seen: List[Any] = []
    import speechbrain

    class Small(speechbrain.Brain):  # type: ignore[misc]
        def compute_forward(self, batch: Any, stage: Any) -> Any:
            out = self.modules.linear(batch)
            seen.append(out.dtype)
            return out

        def compute_objectives(self, predictions: Any, batch: Any, stage: Any) -> Any:
            return predictions.float().pow(2).mean()

    outcome = patched(train, "--device=cpu", f"--precision={value}", "--noprogressbar")
    made = Small(
        {"linear": torch.nn.Linear(2, 2)}, lambda p: torch.optim.SGD(p, 0.1), parsing.load(outcome), outcome.options
    )
    before = made.modules["linear"].weight.detach().clone()
    made.fit(range(1), [torch.ones(1, 2)])
    assert not torch.equal(before, made.modules["linear"].weight)
    assert seen == [torch.bfloat16 if RELEASE >= (0, 5, 14) else torch.float32]
