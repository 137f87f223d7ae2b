"""A fault of data or of a name is named as what it is: the file, the key and the near name, not what follows from it.

Public reports: FunASR 1389, 2097 and SenseVoice 54 (a path that does not exist, told as an attribute of ``str``),
FunASR 2769 and SenseVoice 158 (utterances longer than ``batch_size``, told as an IndexError of the model), Fun-ASR 45
(``dataset=FunASRNano``) and FunASR 2664 (a tokenizer), told as "'NoneType' object is not callable".
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

from tests.funasr import launch, recipes
from tests.funasr.launch import Result, Scenario
from tests.funasr.trained import SAMPLER

# Whether it is under ddpfix, and the results by the scenario's name.
Ran = Tuple[bool, Dict[str, List[Result]]]
SENSE_VOICE = (launch.package() / "datasets" / "sense_voice_datasets").exists()
# A tokenizer with SenseVoice's own numbers for its marks.
CODES = """
from funasr.register import tables
MARKS = {"<|zh|>": 24884, "<|NEUTRAL|>": 25004, "<|Speech|>": 24993, "<|woitn|>": 25017}
class Codes:
    def __init__(self, **kwargs):
        pass
    def encode(self, text, **kwargs):
        return [MARKS[text]] if text in MARKS else [3 + ord(letter) % 26 for letter in text]
    def get_vocab_size(self):
        return 25055
tables.tokenizer_classes["Codes"] = Codes
"""
# As if the module of a tokenizer had failed to be imported, which FunASR does not report.
LOST = """
import sys
from funasr.register import tables
del sys.modules[tables.tokenizer_classes.pop("CharTokenizer").__module__]
"""
# Names that no table has, and the nearest one that it has in every release.
NAMES = {"dataset=FunASRNano": "", "tokenizer=CharTokeniser": "CharTokenizer", "optim=adamww": "adam"}
SPELT = {
    "dataset_conf.batchsize=100": "dataset_conf.batch_size",
    "dataset_conf.batch_typ=token": "dataset_conf.batch_type",
    "frontend_conf.n_mel=80": "frontend_conf.n_mels",
    "scheduler_conf.warmup_step=5": "scheduler_conf.warmup_steps",
}
LONGER = "12 longer than dataset_conf.batch_size=60 (raise it to keep them)"
# Read by some class, or like nothing that is read.
READ = ("dataset_conf.sort_size=10", "dataset_conf.max_source_length=3000", "dataset_conf.mine=1", "optim_conf.eps=0.1")


def replaced(config: Path, rank_of_two: int, source: str) -> Path:
    """Give every second utterance of the training list another file."""
    file = config.parent / "train.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines[rank_of_two::2]:
        line["source"] = source
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return config


def sense_voice(folder: Path, batch_size: int) -> Path:
    encoder = {**recipes._ENCODERS["SANMEncoder"], "tp_blocks": 1}
    return recipes.write(
        folder,
        "Paraformer",
        (1.0, 1.1, 1.2, 1.3) * 3,
        model="SenseVoiceSmall",
        model_conf={"length_normalized_loss": True, "sos": 1, "eos": 2, "ignore_id": -1},
        encoder="SenseVoiceEncoderSmall",
        encoder_conf=encoder,
        tokenizer="Codes",
        vocab_size=25055,
        dataset="SenseVoiceCTCDataset",
        dataset_conf={"batch_sampler": SAMPLER, "batch_type": "token", "batch_size": batch_size, "retry": 1},
    )


def scenarios(folder: Path) -> List[Scenario]:
    good = recipes.write(folder / "good", "Paraformer", (1.0, 1.2) * 4, dataset_conf={"batch_sampler": SAMPLER})
    text = folder / "text.wav"
    text.write_text("no audio")
    plans = [Scenario(each.split("=")[0], good, overrides=[f"++{each}"]) for each in NAMES]
    plans.append(Scenario("lost", good, before=LOST))
    plans.append(Scenario("good", good, overrides=[f"++{each}" for each in READ]))
    plans.append(Scenario("spelt", good, overrides=[f"++{each}" for each in SPELT]))
    for name, workers, source in (("missing", 1, str(folder / "elsewhere.wav")), ("text", 0, str(text))):
        config = recipes.write(folder / name, "Paraformer", (1.0, 1.2) * 4, dataset_conf={"batch_sampler": SAMPLER})
        plans.append(Scenario(name, replaced(config, 1, source), overrides=[f"++dataset_conf.num_workers={workers}"]))
    if SENSE_VOICE:
        none = replaced(sense_voice(folder / "noise", 150), 1, str(text))
        plans.append(Scenario("noise", none, "train_ds", ["++dataset_conf.num_workers=1"], before=CODES))
        plans.append(Scenario("long", sense_voice(folder / "long", 60), "train_ds", before=CODES))
    return plans


@pytest.fixture(scope="module", params=["unpatched", "patched"])
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("named")
    is_patched = request.param == "patched"
    return is_patched, launch.train(scenarios(folder), folder / "out", ddpfix=is_patched)


def test_a_right_program_gets_no_line(ran: Ran) -> None:
    is_patched, runs = ran
    # Plain 1.0.0 reads what is validated by the sampler of the training.
    assert runs["good"][0].error is None or not is_patched, runs["good"][0].log[-3000:]
    log = "".join(result.log for result in runs["good"])
    assert "did not take effect" not in log and "Audio file" not in log


ENTRY, UNEVEN = pytest.mark.patches("funasr.entry"), pytest.mark.patches("funasr.uneven")
OVERRIDES = pytest.mark.patches("funasr.overrides")
NOISE = "The batch has no usable utterance, so FunASR trains on random noise"
LOST_NAME = "tokenizer=CharTokenizer: FunASR could not import its module. Run python -c 'import funasr.tokenizer."
# The scenario, the error (of 60 tokens a batch it is ours), the line, and another part of it.
TOLD: List[Any] = [
    pytest.param("missing", "", "Audio file '", "elsewhere.wav' does not exist", marks=ENTRY),
    pytest.param("text", "", "Audio file '", "text.wav' cannot be read", marks=ENTRY),
    pytest.param("noise", "index 3 is out of bounds", NOISE, "text.wav' cannot be read (", marks=ENTRY),
    pytest.param("long", "index 3 is out of bounds", LONGER, "2 of 2 ranks have no batch", marks=UNEVEN),
    *(
        pytest.param(key, "", f"{typed}: FunASR has no {key} of this name", near, marks=OVERRIDES)
        for typed, near in NAMES.items()
        for key in [typed.partition("=")[0]]
    ),
    pytest.param("lost", "", LOST_NAME, "", marks=OVERRIDES),
    *(
        pytest.param("spelt", "", f"{typed}: FunASR has no such setting; did you mean {near}?", "", marks=OVERRIDES)
        for typed, near in SPELT.items()
    ),
]


@pytest.mark.parametrize("name, error, said, more", TOLD)
def test_what_is_wrong_is_named(ran: Ran, name: str, error: str, said: str, more: str) -> None:
    is_patched, runs = ran
    if name not in runs:
        pytest.skip("this release has no dataset that goes on without an utterance")
    failed = [result.error for result in runs[name] if result.error]
    wanted = {"spelt": 0, **dict.fromkeys(("missing", "text", "noise", "long"), 1)}.get(name, 2)
    assert len(failed) >= wanted, runs[name][1].log[-3000:]
    assert (is_patched and name == "long") or not error or any(error in each for each in failed)
    told = [line for result in runs[name] for line in result.log.splitlines() if said in line]
    assert bool(told) is is_patched
    assert all(more in line for line in told)
