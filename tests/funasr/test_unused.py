"""Parameters that no step uses: DDP fails unpatched, and trains as a plain average of gradients with the fix."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import pytest
import torch
from ddpfix.patches.funasr import unused

from ddpfix.matrix import loader
from ddpfix.models import wrap_hooks
from ddpfix.patching.site import Site
from tests.funasr import launch, recipes, tiny_model, trained

pytestmark = pytest.mark.patches("funasr.unused")

RELEASE = trained.release()
# Before, every SeacoParaformer dies of "too many values to unpack", and with train_decoder until 1.0.23.
SEACO = RELEASE >= (1, 0, 18)
REDUCTION = "Expected to have finished reduction in the prior iteration"
_LSTM = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
TIMESTAMPS = [
    f"predictor.{name}"
    for name in (
        *(f"blstm.{kind}_l0{way}" for way in ("", "_reverse") for kind in _LSTM),
        *(f"{part}.{kind}" for part in ("cif_output2", "upsample_cnn") for kind in ("weight", "bias")),
    )
]
OUTPUT = ["decoder.output_layer.bias", "decoder.output_layer.weight"]
EMBED = ["decoder.embed.0.weight"]
CTC = ["ctc.ctc_lo.bias", "ctc.ctc_lo.weight"]

Case = Tuple[str, Dict[str, Any], List[str]]
CASES: List[Case] = [
    ("Paraformer", {}, []),
    ("Paraformer", {"ctc_weight": 0.3}, []),
    ("Paraformer", {"share_embedding": True}, []),
    ("Paraformer", {"sampling_ratio": 0.0}, EMBED),
    ("Paraformer", {"sampling_ratio": 0.0, "ctc_weight": 0.3}, EMBED),
    ("BiCifParaformer", {}, []),
    ("BiCifParaformer", {"predictor_weight": 0.0}, []),
    ("BiCifParaformer", {"sampling_ratio": 0.0}, EMBED),
]
if RELEASE >= (1, 0, 15):
    CASES += [
        ("ContextualParaformer", {}, ["bias_embed.weight"]),
        ("ContextualParaformer", {"sampling_ratio": 0.0}, ["bias_embed.weight"]),
        ("ContextualParaformer", {"use_decoder_embedding": False}, []),
        ("ContextualParaformer", {"use_decoder_embedding": False, "sampling_ratio": 0.0}, EMBED),
    ]
if SEACO:
    DEFAULT = TIMESTAMPS if RELEASE >= (1, 0, 24) else TIMESTAMPS + OUTPUT
    CASES += [
        ("SeacoParaformer", {}, DEFAULT),
        ("SeacoParaformer", {"train_decoder": False}, TIMESTAMPS + OUTPUT),
        ("SeacoParaformer", {"train_decoder": False, "sampling_ratio": 0.0}, TIMESTAMPS + OUTPUT),
        ("SeacoParaformer", {"bias_encoder_bid": True}, DEFAULT),
        ("SeacoParaformer", {"ctc_weight": 0.3}, DEFAULT + CTC),
    ]
if RELEASE >= (1, 0, 24):
    CASES += [("SeacoParaformer", {"train_decoder": True}, TIMESTAMPS)]


EXAMINED = loader.load().patches["funasr.unused"].examined


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site("test", {"unused": "auto"}, examined=EXAMINED)
    unused.freeze_unused(made, torch.nn.parallel.distributed, torch.nn.parallel.DistributedDataParallel)
    yield made
    made.undo()


def frozen(model: Any) -> List[str]:
    return sorted(name for name, p in model.named_parameters() if not p.requires_grad)


def wrap(model: Any, user_value: Any = None) -> List[str]:
    """What is frozen when FunASR's trainer wraps a model whose user gave this value of the flag."""
    with wrap_hooks.user_chose(user_value):
        wrap_hooks.run_before_wrap(model)
    return frozen(model)


@pytest.mark.parametrize("name, conf, dead", CASES, ids=lambda value: "" if isinstance(value, list) else str(value))
def test_what_gets_no_gradient_is_frozen_and_nothing_else(name: str, conf: Any, dead: List[str], site: Site) -> None:
    model = tiny_model.build(name, model_conf=conf)
    assert tiny_model.idle(model, 6) == dict.fromkeys(dead, 6)
    assert bool(wrap_hooks.reasons(model)) == bool(dead)
    assert wrap(model) == sorted(dead)
    assert wrap_hooks.reasons(model) == []
    assert tiny_model.idle(model, 2) == dict.fromkeys(dead, 2)
    site.undo()
    assert frozen(model) == []


# Models with configurations of their own: how many parameters are never used, and below which names they lie.
MORE: Dict[str, Tuple[str, Dict[str, Any], int, List[str]]] = {
    "streaming": ("ParaformerStreaming", tiny_model.chunked(), 0, []),
    "streaming, no sampler": (
        "ParaformerStreaming",
        {**tiny_model.chunked(), "model_conf": {"sampling_ratio": 0.0}},
        1,
        ["decoder.embed"],
    ),
    "e_paraformer": ("EParaformer", {}, 0, []),
    "e_paraformer, no sampler": ("EParaformer", {"model_conf": {"sampling_ratio": 0.0}}, 1, ["decoder.embed"]),
}


# Before, its forward raises: no attribute "step_cur", a loss of another size.
SINCE = {"ParaformerStreaming": (1, 0, 18)}


@pytest.mark.parametrize("case", MORE)
def test_other_classes(case: str, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    import funasr  # noqa: F401
    from funasr.register import tables

    name, changes, count, parts = MORE[case]
    if name not in tables.model_classes:
        pytest.skip(f"no {name} in this release")
    if SINCE.get(name, RELEASE) > RELEASE:
        pytest.skip(f"{name} cannot be trained in this release")
    # The sampler of ParaformerStreaming moves indices to CUDA, up to 1.3.14.
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    model = tiny_model.build(name, **changes)
    idle = tiny_model.idle(model, 4)
    assert set(idle.values()) <= {4}
    assert len(idle) == count
    assert {part for part in parts for name in idle if name.startswith(f"{part}.")} == set(parts)
    assert wrap(model) == sorted(idle)
    assert wrap_hooks.reasons(model) == []


NAME = "SeacoParaformer" if SEACO else "Paraformer"
CONF = {"sampling_ratio": 0.0}


def subject() -> Any:
    return tiny_model.build(NAME, model_conf=CONF)


def test_parameters_frozen_by_the_user_stay(site: Site) -> None:
    model = subject()
    theirs = dict(model.named_parameters())["encoder.encoders0.0.norm1.weight"].requires_grad_(False)
    wrap(model)
    site.undo()
    assert frozen(model) == ["encoder.encoders0.0.norm1.weight"]
    assert not theirs.requires_grad


def test_nothing_is_frozen_in_a_loop_of_the_users_own(site: Site) -> None:
    model = subject()
    wrap_hooks.run_before_wrap(model)
    assert frozen(model) == []
    assert wrap_hooks.reasons(model)


def test_a_subclass_with_other_code_gets_the_flag(site: Site) -> None:
    model = subject()
    original = type(model)
    model.__class__ = type("Mine", (original,), {"encode": lambda self, *args: original.encode(self, *args)})
    assert wrap(model) == []
    assert "Mine never uses" in wrap_hooks.reasons(model)[0]


def test_a_subclass_with_the_same_code_is_as_good_as_its_base(site: Site) -> None:
    model = subject()
    model.__class__ = type("Mine", (type(model),), {"note": lambda self: 1})
    assert wrap(model) != []


def test_a_model_with_hooks_gets_the_flag(site: Site) -> None:
    model = subject()
    model.predictor.register_forward_hook(lambda *_: None)
    assert wrap(model) == []
    assert wrap_hooks.reasons(model)


def test_a_method_put_on_the_instance_gets_the_flag(site: Site) -> None:
    model = subject()
    model.encode = type(model).encode.__get__(model)
    assert wrap(model) == []
    assert wrap_hooks.reasons(model)


def test_a_model_inside_another_gets_the_flag(site: Site) -> None:
    outer = torch.nn.Sequential(subject())
    assert wrap(outer) == []
    assert wrap_hooks.reasons(outer)


def test_a_parameter_with_a_second_name_is_used(site: Site) -> None:
    model = subject()
    dead = unused._trainable(model, unused._claims(model)[0])
    model.encoder.register_parameter("tied", dead[0][1])
    assert dead[0][0] not in wrap(model)


@pytest.mark.parametrize(
    ("wish", "examined"), [("auto", dict.fromkeys(EXAMINED, ["000000000000"])), ("find", EXAMINED)]
)
def test_what_nobody_has_examined_gets_the_flag_and_so_does_all_under_find(wish: str, examined: Any) -> None:
    made = Site("test", {"unused": wish}, examined=examined)
    unused.freeze_unused(made, torch.nn.parallel.distributed, torch.nn.parallel.DistributedDataParallel)
    try:
        model = subject()
        assert wrap(model) == []
        assert wrap_hooks.reasons(model)
    finally:
        made.undo()
    assert wrap_hooks.reasons(model) == []


def test_every_name_of_examined_code_is_in_the_matrix() -> None:
    named = {name for claim in unused.CLAIMS for names in claim.examined.values() for name in names}
    assert named == set(EXAMINED)


# Other classes, as they are: none has a part that never gets a gradient.

OTHERS = ["Transformer", "SANM", "Conformer", "Branchformer", "EBranchformer"] if RELEASE >= (1, 0, 6) else []


@pytest.mark.parametrize("name", OTHERS)
def test_these_classes_use_all_they_have(name: str, site: Site) -> None:
    model = tiny_model.build("Conformer" if name in ("Transformer", "SANM") else name, model=name)
    assert tiny_model.idle(model, 3) == {}
    assert unused.freeze(site, model, weakref.WeakSet()) is None
    assert frozen(model) == []


# Two ranks, through FunASR's own entries.

NEEDED = {"paraformer": ("Paraformer", {"sampling_ratio": 0.0})}
if RELEASE >= (1, 0, 15):
    NEEDED["contextual"] = ("ContextualParaformer", {})
if SEACO:
    NEEDED["seaco"] = ("SeacoParaformer", {})
CHIEF = "seaco" if SEACO else "paraformer"
# The edit that maintainers advise: the flag, whatever the script says.
BY_HAND = """
from torch.nn.parallel import DistributedDataParallel
def init(self, *args, original=DistributedDataParallel.__init__, **kwargs):
    original(self, *args, **{**kwargs, "find_unused_parameters": True})
DistributedDataParallel.__init__ = init
"""
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
# A subclass as a user writes it: its code was never examined.
OTHER_CODE = f"""
from funasr.register import tables
name = "SeacoParaformer" if {SEACO} else "Paraformer"
original = tables.model_classes[name]
def encode(self, *args, **kwargs):
    return original.encode(self, *args, **kwargs)
tables.model_classes[name] = type(name, (original,), {{"encode": encode}})
"""


def settings(**more: str) -> Dict[str, str]:
    """The fixes that this is about, alone: all others are off."""
    kept = ("funasr.flag", "funasr.unused")
    off = {name[len("DDPFIX_") :].lower(): value for name, value in trained.only(*kept).items()}
    return {**off, "unused": "auto", **more}


LATE = settings(unused="late")
# The norm of all gradients is rounded otherwise where zeros are among them, and Adam makes much of little gradients.
UNCLIPPED = ["++train_conf.grad_clip=1000000.0"]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, List[launch.Result]]:
    """All runs in one launch: those without settings are unpatched."""
    folder = tmp_path_factory.mktemp("unused")
    wanted: List[launch.Scenario] = []
    starts = launch.starts()
    for short, (name, conf) in NEEDED.items():
        config = _config(folder / short, name, conf)
        for entry in trained.entries() if short == CHIEF else ["train"]:
            wanted += [
                launch.Scenario(f"unpatched {short} {entry}", config, entry, before=starts + STAND_IN),
                launch.Scenario(f"auto {short} {entry}", config, entry, settings=settings()),
            ]
            if short == CHIEF:
                edited = starts + STAND_IN + BY_HAND
                wanted += [
                    launch.Scenario(f"by hand {short} {entry}", config, entry, before=edited),
                    launch.Scenario(f"unclipped {short} {entry}", config, entry, UNCLIPPED, before=edited),
                    launch.Scenario(f"late {short} {entry}", config, entry, UNCLIPPED, settings=LATE),
                ]
    config = folder / CHIEF / "config.yaml"
    flag = "++train_conf.find_unused_parameters="
    wanted += [
        launch.Scenario("find", config, settings=settings(unused="find")),
        launch.Scenario("off", config, settings=settings(unused="off")),
        launch.Scenario("user true", config, settings=settings(), overrides=[flag + "true"]),
        launch.Scenario("user false", config, settings=settings(), overrides=[flag + "false"]),
        launch.Scenario("other code", config, settings=settings(), before=OTHER_CODE),
        launch.Scenario(
            "other code user false", config, settings=settings(), before=OTHER_CODE, overrides=[flag + "false"]
        ),
        launch.Scenario("plain", config, before=STAND_IN + PLAIN),
    ]
    return launch.train(wanted, folder / "out", ddpfix=False, stand_in=False)


def _config(folder: Path, name: str, conf: Dict[str, Any]) -> Path:
    changes: Dict[str, Any] = {"model_conf": conf, "train_conf": {"max_epoch": 0 if RELEASE < (1, 0, 26) else 1}}
    if RELEASE < (1, 0, 6):
        changes["dataset_conf"] = {"batch_sampler": "DynamicBatchLocalShuffleSampler"}
    config = recipes.write(folder, name, **changes)
    if RELEASE < (1, 0, 6):
        recipes.corpus(folder, (1.0, 1.2, 1.4, 1.6) * 4, "val")
    return config


def ran() -> List[str]:
    return [f"{short} {entry}" for short in NEEDED for entry in (trained.entries() if short == CHIEF else ["train"])]


def flag_and_frozen(results: List[launch.Result]) -> Any:
    """(flag, number of frozen parameters) on all ranks alike."""
    (one,) = {(result.ddp[0]["find_unused"], len(result.ddp[0]["frozen"])) for result in results}
    return one


# The older samplers leave one batch out.
STEPS = 4 if RELEASE >= (1, 0, 18) else 3
DEAD = {"seaco": 12 if RELEASE >= (1, 0, 24) else 14, "contextual": 1, "paraformer": 1}


@pytest.mark.parametrize("run", ran())
def test_unpatched_fails_after_a_step_in_which_replicas_diverge(run: str, outcomes: Any) -> None:
    first, second = outcomes[f"unpatched {run}"]
    if RELEASE == (1, 0, 24):
        # The only release whose own default is True.
        assert trained.same_steps([first, second])
        return
    assert REDUCTION in first.error
    assert REDUCTION in second.error
    assert len(first.steps) == len(second.steps) == 1
    assert first.steps != second.steps


@pytest.mark.parametrize("run", ran())
def test_with_the_dead_parts_frozen_it_trains_as_the_release_edited_by_hand(run: str, outcomes: Any) -> None:
    patched, edited = outcomes[f"auto {run}"], outcomes.get(f"by hand {run}", [])
    if RELEASE == (1, 0, 28) and run.startswith("paraformer"):
        pytest.skip("CIF fires one token too few there, and the model dies of it")
    assert [result.error for result in patched] == [None, None]
    assert flag_and_frozen(patched) == (RELEASE == (1, 0, 24), DEAD[run.split()[0]])
    assert not edited or flag_and_frozen(edited) == (True, 0)
    assert trained.same_steps([*patched, *edited])
    assert len(patched[0].steps) == STEPS


def test_it_trains_as_a_plain_average_of_gradients_does(outcomes: Any) -> None:
    assert trained.same_steps([*outcomes[f"auto {CHIEF} train"], *outcomes["plain"]])


@pytest.mark.parametrize("run", ("find", "user true", "other code"))
def test_the_flag_instead_trains_the_same(run: str, outcomes: Any) -> None:
    assert flag_and_frozen(outcomes[run]) == (True, 0)
    assert trained.same_steps([*outcomes[run], *outcomes[f"auto {CHIEF} train"]])


def test_frozen_parts_need_no_flag_where_the_user_forbids_it(outcomes: Any) -> None:
    assert flag_and_frozen(outcomes["user false"]) == (False, DEAD[CHIEF])
    assert trained.same_steps([*outcomes["user false"], *outcomes[f"auto {CHIEF} train"]])


def test_the_users_false_stays_where_nothing_can_be_frozen(outcomes: Any) -> None:
    first, second = outcomes["other code user false"]
    assert REDUCTION in first.error
    assert "find_unused_parameters=False is your own setting and stays" in first.log
    assert flag_and_frozen([first, second]) == (False, 0)


def test_off_trains_as_unpatched(outcomes: Any) -> None:
    assert flag_and_frozen(outcomes["off"]) == (RELEASE == (1, 0, 24), 0)
    assert (REDUCTION in str(outcomes["off"][0].error)) == (RELEASE != (1, 0, 24))


def test_one_line_says_what_was_done(outcomes: Any) -> None:
    log = outcomes[f"auto {CHIEF} train"][0].log
    assert log.count(" never uses ") == (2 if DEAD[CHIEF] == 14 else 1)
    assert "so DDP needs no find_unused_parameters for them" in log


FINALIZED = "ddpfix trains on, as find_unused_parameters=True does"
OWN_FLAG = pytest.mark.skipif(RELEASE == (1, 0, 24), reason="find_unused_parameters is True there")


@OWN_FLAG
@pytest.mark.parametrize("entry", trained.entries())
def test_finalized_after_backward_it_needs_neither_flag_nor_freezing(entry: str, outcomes: Any) -> None:
    """Adam without weight decay stays where gradients are zeros, as where there are none: bit for bit."""
    late, edited = outcomes[f"late {CHIEF} {entry}"], outcomes[f"unclipped {CHIEF} {entry}"]
    assert [result.error for result in late] == [None, None]
    assert (flag_and_frozen(late), flag_and_frozen(edited)) == ((False, 0), (True, 0))
    assert trained.same_steps([*late, *edited])
    assert len(late[0].steps) == STEPS
    number = "1 parameter" if DEAD[CHIEF] == 1 else f"{DEAD[CHIEF]} parameters"
    assert f"{number} of {NAME} (" in late[0].log and "got no gradient" in late[0].log
    assert FINALIZED in late[0].log
