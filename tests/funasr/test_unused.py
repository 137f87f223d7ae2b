"""Parameters that no step uses: unpatched, DDP fails (issue 1584); with ddpfix they train as edited by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List

import pytest

from tests.funasr import launch, recipes, trained
from tests.support.results import well

pytestmark = pytest.mark.patches("funasr.flag", "torch.finalize")

RELEASE = trained.release()
# Before, every SeacoParaformer dies of "too many values to unpack", and with train_decoder until 1.0.23.
SEACO = RELEASE >= (1, 0, 18)
NAME = "SeacoParaformer" if SEACO else "Paraformer"
CONF = {} if SEACO else {"sampling_ratio": 0.0}
REDUCTION = "Expected to have finished reduction in the prior iteration"
# No DDP at all: gradients are averaged one by one when the trainer clips them.
PLAIN = """
import contextlib, sys, torch
from torch import distributed
class Plain(torch.nn.Module):
    def __init__(self, module, **kwargs):
        super().__init__()
        self.module = module
        clip = torch.nn.utils.clip_grad_norm_
        def averaged(*args, **kwargs):
            self.average()
            return clip(*args, **kwargs)
        torch.nn.utils.clip_grad_norm_ = averaged
        for tensor in module.state_dict().values():
            distributed.broadcast(tensor, 0)
    def average(self):
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                distributed.all_reduce(parameter.grad)
                parameter.grad /= distributed.get_world_size()
    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)
    def no_sync(self):
        return contextlib.nullcontext()
torch.nn.parallel.DistributedDataParallel = Plain
for module in list(sys.modules.values()):
    if getattr(module, "__name__", "").startswith("funasr.") and "DDP" in vars(module):
        module.DDP = Plain
"""
STAND_IN = "from tests.funasr import stand_in\nstand_in.cuda()\n"
FLAG = "++train_conf.find_unused_parameters="
CURE = FLAG + "true"
# The norm of all gradients is rounded otherwise where zeros are among them, and Adam makes much of little gradients.
UNCLIPPED = ["++train_conf.grad_clip=1000000.0"]
# The older samplers leave one batch out.
STEPS = 4 if RELEASE >= (1, 0, 18) else 3
# Of a SeacoParaformer the timestamp branch, and the decoder's output layer where train_decoder is false.
IDLE = {True: 12 if RELEASE >= (1, 0, 24) else 14, False: 1}[SEACO]
OWN_FLAG = pytest.mark.skipif(RELEASE == (1, 0, 24), reason="find_unused_parameters is True there")


def settings(**more: str) -> Dict[str, str]:
    """The fix that this is about, alone: all others of FunASR are off."""
    off = {name[len("DDPFIX_") :].lower(): value for name, value in trained.only("funasr.flag").items()}
    return {**off, **more}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, List[launch.Result]]:
    """All runs in one launch: those without settings are unpatched."""
    folder = tmp_path_factory.mktemp("unused")
    config = _config(folder)
    starts = launch.starts() + STAND_IN
    wanted: List[launch.Scenario] = []
    for entry in trained.entries():
        wanted += [
            launch.Scenario(f"unpatched {entry}", config, entry, before=starts),
            launch.Scenario(f"by hand {entry}", config, entry, UNCLIPPED, before=starts + trained.BY_HAND),
            launch.Scenario(f"ours {entry}", config, entry, UNCLIPPED, settings=settings()),
        ]
    wanted += [
        launch.Scenario("off", config, settings=settings(unused="off")),
        launch.Scenario("find", config, overrides=UNCLIPPED, settings=settings(unused="find")),
        launch.Scenario("user true", config, settings=settings(), overrides=[*UNCLIPPED, FLAG + "true"]),
        launch.Scenario("user false", config, settings=settings(), overrides=[FLAG + "false"]),
        launch.Scenario("plain", config, overrides=UNCLIPPED, before=starts + PLAIN),
    ]
    if SEACO:
        keep, depth = {"keep_nbest_models": 10}, {"stochastic_depth_rate": 0.5}
        config = recipes.write(folder / "depth", "Conformer", encoder_conf=depth, train_conf=keep)
        for entry in trained.entries():
            wanted.append(launch.Scenario(f"depth {entry}", config, entry, settings={"unused": "off"}))
            wanted.append(launch.Scenario(f"cured {entry}", config, entry, [CURE], {"unused": "off"}))
    return launch.train(wanted, folder / "out", ddpfix=False, stand_in=False)


def _config(folder: Path) -> Path:
    changes: Dict[str, Any] = {"model_conf": CONF, "train_conf": {"max_epoch": 0 if RELEASE < (1, 0, 26) else 1}}
    if RELEASE < (1, 0, 6):
        changes["dataset_conf"] = {"batch_sampler": "DynamicBatchLocalShuffleSampler"}
    config = recipes.write(folder, NAME, **changes)
    if RELEASE < (1, 0, 6):
        recipes.corpus(folder, (1.0, 1.2, 1.4, 1.6) * 4, "val")
    return config


def flag(results: List[launch.Result]) -> Any:
    """The flag on all ranks alike."""
    (one,) = {result.ddp[0]["find_unused"] for result in results}
    return one


@OWN_FLAG
@pytest.mark.parametrize("entry", trained.entries())
def test_unpatched_fails_after_a_step_in_which_replicas_diverge(entry: str, outcomes: Any) -> None:
    first, second = outcomes[f"unpatched {entry}"]
    assert REDUCTION in first.error and REDUCTION in second.error
    assert len(first.steps) == len(second.steps) == 1
    assert first.steps != second.steps


@pytest.mark.parametrize("entry", trained.entries())
def test_it_trains_as_the_release_edited_by_hand(entry: str, outcomes: Any) -> None:
    """Adam without weight decay stays where gradients are zeros, as where there are none: bit for bit."""
    ours, edited = outcomes[f"ours {entry}"], outcomes[f"by hand {entry}"]
    assert [result.error for result in ours] == [None, None]
    assert (flag(ours), flag(edited)) == (RELEASE == (1, 0, 24), True)
    assert trained.same_steps([*ours, *edited])
    assert len(ours[0].steps) == STEPS


@OWN_FLAG
@pytest.mark.parametrize("entry", trained.entries())
def test_one_line_says_what_was_done(entry: str, outcomes: Any) -> None:
    log = outcomes[f"ours {entry}"][0].log
    number = "1 parameter" if IDLE == 1 else f"{IDLE} parameters"
    assert f"{number} of {NAME} (" in log and "got no gradient" in log
    assert "ddpfix trains on, as find_unused_parameters=True does" in log


def test_it_trains_as_a_plain_average_of_gradients_does(outcomes: Any) -> None:
    assert trained.same_steps([*outcomes["ours train"], *outcomes["plain"]])


@pytest.mark.parametrize("run", ("find", "user true"))
def test_the_flag_instead_trains_the_same(run: str, outcomes: Any) -> None:
    assert flag(outcomes[run]) is True
    assert trained.same_steps([*outcomes[run], *outcomes["ours train"]])


def test_the_users_false_stays(outcomes: Any) -> None:
    assert REDUCTION in outcomes["user false"][0].error
    assert flag(outcomes["user false"]) is False


def test_off_trains_as_unpatched(outcomes: Any) -> None:
    assert flag(outcomes["off"]) == (RELEASE == (1, 0, 24))
    assert (REDUCTION in str(outcomes["off"][0].error)) == (RELEASE != (1, 0, 24))


@OWN_FLAG
@pytest.mark.patches("torch.diagnosis")
@pytest.mark.skipif(not SEACO, reason="training needs edits")
@pytest.mark.parametrize("entry", trained.entries())
def test_the_line_of_the_diagnosis_is_an_override_and_cures(entry: str, outcomes: Any) -> None:
    errors = [str(result.error) for result in outcomes[f"depth {entry}"] if REDUCTION in str(result.error)]
    assert errors, outcomes[f"depth {entry}"][0].log
    for error in errors:
        assert "encoder.encoders" in error and "in FunASR, paste this line" in error
        assert "EncoderLayer skips layers at random (stochastic_depth_rate 0.5)" in error
    assert errors[0].rstrip().splitlines()[-1].strip() == CURE
    well(outcomes[f"cured {entry}"])
    assert outcomes[f"cured {entry}"][0].steps and flag(outcomes[f"cured {entry}"]) is True
