"""What the user sets is what runs: each way in which FunASR loses a setting, shown on the release and under ddpfix.

One launch of two ranks runs every scenario twice: on the release as it is, and under ddpfix with the fix for unused
parameters off, so that only what the user set decides.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Sequence

import pytest
import torch
import yaml

from tests.funasr import launch, recipes, trained
from tests.funasr.launch import Result, Scenario
from tests.funasr.trained import SAMPLER

RELEASE = trained.release()
ENTRIES = launch.entries()
DS = "train_ds" in ENTRIES
# train_ds of this release dies with a TypeError in any run of more than one process.
DEAD = RELEASE == (1, 1, 9)
FLAG = "train_conf.find_unused_parameters"
Ran = Dict[str, List[Result]]

# Ends the run within the first epoch: of the release's own validation and averaging nothing runs.
EPOCH = """
import functools, sys
def ends(original):
    @functools.wraps(original)
    def epoch(self, *args, **kwargs):
        BEFORE
        raise SystemExit(0)
    return epoch
for module in ("funasr.train_utils.trainer", "funasr.train_utils.trainer_ds"):
    trainer = getattr(sys.modules.get(module), "Trainer", None)
    for name in ("train_epoch", "_train_epoch"):
        if hasattr(trainer, name):
            setattr(trainer, name, ends(getattr(trainer, name)))
"""
TRAIN = EPOCH.replace("BEFORE", "original(self, *args, **kwargs)")
# Records the model that DDP got and the user's choice of the flag, and trains nothing.
STOP = """
import sys, torch
DDP = torch.nn.parallel.DistributedDataParallel
built = DDP.__init__
def init(self, module, *args, **kwargs):
    recorder.record["sums"] = {name: p.double().sum().item() for name, p in module.named_parameters()}
    if "ddpfix" in sys.modules:
        from ddpfix.models import wrap_hooks
        recorder.record["user_choice"] = list(wrap_hooks.user_choice())
    built(self, module, *args, **kwargs)
DDP.__init__ = init
""" + EPOCH.replace("BEFORE", "pass")
# The maintainers' edit of 1.1.17: the configuration is handed to the function that builds DDP.
EDITED = """
import sys
trainer = sys.modules["funasr.train_utils.trainer_ds"].Trainer
warp = trainer.warp_model
trainer.warp_model = lambda self, model, **kwargs: warp(self, model, train_conf={"find_unused_parameters": True})
"""
DEEPSPEED = """
import sys, torch.distributed, types
fake = types.ModuleType("deepspeed")
def init_distributed(dist_backend):
    recorder.record["deepspeed"] = dist_backend
    torch.distributed.init_process_group(dist_backend)
fake.init_distributed = init_distributed
sys.modules["deepspeed"] = fake
trainer = sys.modules["funasr.train_utils.trainer_ds"].Trainer
made = trainer.__init__
def init(self, *args, **kwargs):
    made(self, *args, **kwargs)
    recorder.record["trainer"] = {"ddp": self.use_ddp, "deepspeed": self.use_deepspeed, "file": self.deepspeed_config}
    raise SystemExit(0)
trainer.__init__ = init
"""


def described(folder: Path) -> Path:
    """A whole configuration; DDP finds ``decoder.embed`` unused, so that the flag makes the difference."""
    changes = {"model_conf": {"sampling_ratio": 0.0}, "dataset_conf": {"batch_sampler": SAMPLER}}
    # Lengths with which rounding does not cost CIF its last token, on which 1.0.28 dies in an unrelated way.
    return recipes.write(folder, "Paraformer", (1.0, 1.2, 1.4, 1.6) * 2, **changes)


def model_folder(folder: Path, **changes: Any) -> Path:
    """A model as it lies in a hub's cache: configuration, CMVN, token list, weights."""
    folder.mkdir(parents=True)
    whole = recipes._merged(recipes.config("Paraformer", folder), changes)
    kept = {key: whole[key] for key in whole if key.split("_")[0] in MODEL_KEYS}
    kept["frontend_conf"]["cmvn_file"] = kept["tokenizer_conf"]["token_list"] = None
    (folder / "config.yaml").write_text(yaml.safe_dump(kept))
    (folder / "tokens.json").write_text(json.dumps(recipes.TOKENS))
    (folder / "am.mvn").write_text(cmvn(560))
    torch.save({}, folder / "model.pt")
    files = {
        "config": "config.yaml",
        "init_param": "model.pt",
        "tokenizer_conf": {"token_list": "tokens.json"},
        "frontend_conf": {"cmvn_file": "am.mvn"},
    }
    (folder / "configuration.json").write_text(json.dumps({"file_path_metas": files}))
    return folder


MODEL_KEYS = {"model", "encoder", "decoder", "predictor", "frontend", "tokenizer", "input"}


def cmvn(width: int) -> str:
    """Kaldi's text form of mean and variance, in which FunASR's models bring theirs."""
    numbers = "<LearnRateCoef> 0 [ " + " ".join(["0.5"] * width) + " ]"
    return f"<Nnet>\n<AddShift> {width} {width}\n{numbers}\n<Rescale> {width} {width}\n{numbers}\n</Nnet>\n"


def by_model(folder: Path, model: Path) -> Path:
    """A configuration that names a model and the data, and describes no model, as a user's command line does."""
    folder.mkdir(parents=True, exist_ok=True)
    recipes.corpus(folder, (1.0,) * 8)
    recipes.corpus(folder, (1.0,) * 4, "val")
    whole = recipes._merged(recipes.config("Paraformer", folder), {"dataset_conf": {"batch_sampler": SAMPLER}})
    kept = {key: value for key, value in whole.items() if key.split("_")[0] not in MODEL_KEYS}
    (folder / "config.yaml").write_text(yaml.safe_dump({**kept, "model": str(model)}))
    return folder / "config.yaml"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("funasr")


@pytest.fixture(scope="module")
def ran(folder: Path) -> Ran:
    return launch.train(scenarios(folder), folder / "out", ddpfix=False)


def both(
    name: str, config: Path, *overrides: str, entry: str = "train", before: str = STOP, only: str = ""
) -> List[Scenario]:
    """The same run on the release as it is and under ddpfix, or only one of the two."""
    settings: Sequence[Dict[str, str]] = ({}, {"unused": "off"})
    kinds = [(kind, given) for kind, given in zip(("unpatched", "patched"), settings) if only in ("", kind)]
    return [Scenario(f"{kind}-{name}", config, entry, overrides, given, before) for kind, given in kinds]


def scenarios(folder: Path) -> List[Scenario]:
    whole = described(folder / "data")
    plans: List[Scenario] = []
    for entry in ENTRIES:
        plans += both(f"flag-{entry}", whole, f"++{FLAG}=true", entry=entry, before=TRAIN)
        plans += both(f"fsdp-{entry}", whole, "++train_conf.use_fsdp=true", entry=entry, before=TRAIN)
    return [*plans, *of_flag(whole), *of_parallel(whole, folder), *of_model(whole, folder)]


def of_flag(whole: Path) -> List[Scenario]:
    edited = Scenario("unpatched-by-hand", whole, "train_ds", [f"++{FLAG}=true"], before=TRAIN + EDITED + launch.DROP)
    return [
        *([edited] if DS else []),
        *both("top", whole, "++find_unused_parameters=true"),
        *both("text", whole, f"++{FLAG}='\"false\"'"),
        *both("nothing", whole, only="patched"),
        *both("no", whole, f"++{FLAG}=false", only="patched"),
        *both("maybe", whole, f"++{FLAG}=maybe", only="patched"),
        *both("typos", whole, "++max_epoch=3", "++train_conf.acum_grad=2", *HARMLESS, only="patched"),
    ]


# What the release reads, and what only a fix of ours reads in older releases.
HARMLESS = ("++train_conf.grad_clip=4", "++train_conf.use_bf16=false")


def of_parallel(whole: Path, folder: Path) -> List[Scenario]:
    (folder / "ds.json").write_text("{}")
    deepspeed = ["++train_conf.use_deepspeed=true", f"++train_conf.deepspeed_config={folder / 'ds.json'}"]
    plans = both("half", whole, *deepspeed, entry="train_ds", before=DEEPSPEED) if DS else []
    return [
        *plans,
        *both("deepspeed", whole, "++train_conf.use_deepspeed=true"),
        *both("fsdp-top", whole, "++use_fsdp=true"),
        *both("fsdp-false", whole, "++train_conf.use_fsdp=false"),
    ]


def of_model(whole: Path, folder: Path) -> List[Scenario]:
    plain = model_folder(folder / "plain")
    named = by_model(folder / "named", plain)
    edited = by_model(folder / "edited", model_folder(folder / "smooth", model_conf={"lsm_weight": 0.7}))
    return [
        *both("model_conf", named, "++model_conf.lsm_weight=0.7"),
        *both("described", whole, "++model_conf.lsm_weight=0.7"),
        *both("edited", edited, only="unpatched"),
    ]


@pytest.mark.patches("funasr.flag")
class TestFlag:
    @pytest.mark.parametrize("entry", ENTRIES)
    def test_arrives(self, ran: Ran, entry: str) -> None:
        unpatched = ran[f"unpatched-flag-{entry}"][0]
        if entry == "train" or RELEASE >= (1, 1, 17):
            assert unpatched.error is None and unpatched.ddp[0]["find_unused"] is True
        elif DEAD:
            assert "init_process_group() got an unexpected keyword argument 'find_unused_parameters'" in str(
                unpatched.error
            )
        else:
            assert unpatched.ddp[0]["find_unused"] is False
            assert (
                "Expected to have finished reduction" in f"{unpatched.error} {ran['unpatched-flag-train_ds'][1].error}"
            )
        for rank in (0, 1):
            patched = ran[f"patched-flag-{entry}"][rank]
            assert patched.error is None, patched.log[-3000:]
            assert patched.ddp[0]["find_unused"] is True
            assert patched.steps == ran[f"patched-flag-{entry}"][0].steps and len(patched.steps) > 1

    @pytest.mark.skipif(not DS, reason="this release has no train_ds")
    def test_equals_the_release_edited_by_hand(self, ran: Ran) -> None:
        edited = ran["unpatched-by-hand"][0]
        assert edited.error is None and len(edited.steps) > 1, edited.log[-3000:]
        assert ran["patched-flag-train_ds"][0].steps == edited.steps

    def test_top_level(self, ran: Ran) -> None:
        # 1.0.24 has True for its default.
        assert ran["unpatched-top"][0].ddp[0]["find_unused"] is (RELEASE == (1, 0, 24))
        assert ran["patched-top"][0].ddp[0]["find_unused"] is True
        assert "moved find_unused_parameters=True to train_conf.find_unused_parameters" in ran["patched-top"][0].log

    def test_text_is_a_truth_value(self, ran: Ran) -> None:
        unpatched = ran["unpatched-text"][0]
        # torch 2.13 refuses the text; where it does not, "false" counts as true.
        assert "incompatible" in str(unpatched.error) or unpatched.ddp[0]["find_unused"]
        assert ran["patched-text"][0].error is None and ran["patched-text"][0].ddp[0]["find_unused"] is False
        assert ran["patched-text"][0].notes["user_choice"] == [True, False]
        assert "find_unused_parameters='maybe': use true or false" in str(ran["patched-maybe"][0].error)

    def test_the_users_value_is_known(self, ran: Ran) -> None:
        assert ran["patched-nothing"][0].notes["user_choice"] == [True, None]
        assert ran["patched-no"][0].notes["user_choice"] == [True, False]
        assert ran["patched-top"][0].notes["user_choice"] == [True, True]


@pytest.mark.patches("funasr.parallel")
class TestParallel:
    @pytest.mark.parametrize("entry", ENTRIES)
    def test_fsdp_stops(self, ran: Ran, entry: str) -> None:
        unpatched = [ran[f"unpatched-fsdp-{entry}"][rank] for rank in (0, 1)]
        if entry == "train_ds" and RELEASE >= (1, 4, 2):
            # Nothing wraps the model: the ranks drift apart, and nobody says so before the first checkpoint.
            assert not unpatched[0].ddp and len(unpatched[0].steps) > 1
            assert all(mine != other for mine, other in zip(unpatched[0].steps, unpatched[1].steps))
        elif not (DEAD and entry == "train_ds"):
            assert "got multiple values for keyword argument 'use_fsdp'" in str(unpatched[0].error)
        patched = ran[f"patched-fsdp-{entry}"][0]
        assert (
            str(patched.error).startswith("ValueError: use_fsdp: FunASR cannot train and save with FSDP")
            and not patched.batches
        )

    def test_fsdp_at_the_top_is_not_ddp(self, ran: Ran) -> None:
        assert ran["unpatched-fsdp-top"][0].error is None and ran["unpatched-fsdp-top"][0].ddp
        assert "use_fsdp: FunASR cannot train and save with FSDP" in str(ran["patched-fsdp-top"][0].error)

    def test_false_is_no_reason_to_die(self, ran: Ran) -> None:
        assert "got multiple values for keyword argument 'use_fsdp'" in str(ran["unpatched-fsdp-false"][0].error)
        assert ran["patched-fsdp-false"][0].error is None and ran["patched-fsdp-false"][0].ddp

    def test_train_has_no_deepspeed(self, ran: Ran) -> None:
        unpatched = ran["unpatched-deepspeed"][0]
        assert (unpatched.error is None and unpatched.ddp) or "TypeError" in str(unpatched.error)
        assert "this entry does not support DeepSpeed" in str(ran["patched-deepspeed"][0].error)

    @pytest.mark.skipif(not DS, reason="this release has no train_ds")
    def test_deepspeed_in_both_places(self, ran: Ran) -> None:
        whole = RELEASE >= (1, 4, 2)
        unpatched, patched = ran["unpatched-half"][0], ran["patched-half"][0]
        assert unpatched.notes.get("deepspeed") == ("gloo" if whole else None)
        if not DEAD:
            assert unpatched.notes["trainer"]["ddp"] is not whole and unpatched.notes["trainer"]["deepspeed"] is True
        assert patched.notes["deepspeed"] == "gloo"
        assert patched.notes["trainer"]["ddp"] is False and patched.notes["trainer"]["deepspeed"] is True
        assert patched.notes["trainer"]["file"].endswith("ds.json")


def saved(folder: Path, result: Result, name: str) -> Dict[str, Any]:
    """The configuration that the release itself wrote beside its checkpoints."""
    assert result.error is None, result.log[-3000:]
    config = yaml.safe_load((folder / "out" / name / "config.yaml").read_text())
    assert isinstance(config, dict)
    return config


class TestModel:
    @pytest.mark.patches("funasr.model_conf")
    def test_model_conf_changes_the_models_own(self, ran: Ran, folder: Path) -> None:
        assert ran["unpatched-model_conf"][0].error is not None
        patched = saved(folder, ran["patched-model_conf"][0], "patched-model_conf")
        edited = saved(folder, ran["unpatched-edited"][0], "unpatched-edited")
        assert patched["model_conf"] == edited["model_conf"] and patched["model_conf"]["lsm_weight"] == 0.7
        assert ran["patched-model_conf"][0].notes["sums"] == ran["unpatched-edited"][0].notes["sums"]

    @pytest.mark.patches("funasr.model_conf")
    def test_a_described_model_is_left_alone(self, ran: Ran, folder: Path) -> None:
        patched, unpatched = (
            saved(folder, ran[f"{kind}-described"][0], f"{kind}-described") for kind in ("patched", "unpatched")
        )
        assert {**patched, "output_dir": ""} == {**unpatched, "output_dir": ""}


@pytest.mark.patches("funasr.overrides")
class TestTable:
    def test_what_did_not_arrive(self, ran: Ran) -> None:
        log = ran["patched-typos"][0].log
        assert "++train_conf.max_epoch=3" in log
        assert "train_conf.acum_grad=2: FunASR has no such setting; did you mean train_conf.accum_grad?" in log
        assert "grad_clip=4:" not in log and "use_bf16=false:" not in log

    def test_nothing_is_logged_where_all_arrives(self, ran: Ran) -> None:
        for name in ("no", "described", "model_conf"):
            assert "did not take effect" not in ran[f"patched-{name}"][0].log
