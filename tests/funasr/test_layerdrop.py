"""Stochastic depth: on each rank the same layers are skipped, and nothing else differs from the unpatched model.

The reference does not go through ddpfix: unpatched code, whose draws are scripted to the decisions that ddpfix took.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import pytest
import torch
from ddpfix.patches.funasr import checkpoint, layerdrop
from torch.utils.checkpoint import checkpoint as run_again

from ddpfix.layerdrop import cover, training
from ddpfix.models import wrap_hooks
from ddpfix.patching.site import Site
from tests.funasr import launch, recipes, trained
from tests.support.decided import decided

RELEASE = trained.release()
REDUCTION = "Expected to have finished reduction in the prior iteration"
RATE = 0.5
HOMES = {
    "EncoderLayer": "funasr.models.conformer.encoder",
    "BranchformerEncoderLayer": "funasr.models.branchformer.encoder",
    "MultiSequential": "funasr.models.transformer.utils.repeat",
}
ATTENTION = {"attn_branch_drop_rate": RATE, "merge_method": "learned_ave"}
# Configurations of the encoder, by name; and the class that then draws.
ENCODERS: Dict[str, Tuple[str, Dict[str, Any], str]] = {
    "conformer": ("ConformerEncoder", {"stochastic_depth_rate": RATE}, "EncoderLayer"),
    "branchformer": ("BranchformerEncoder", {"stochastic_depth_rate": RATE}, "BranchformerEncoderLayer"),
    "attention": ("BranchformerEncoder", ATTENTION, "BranchformerEncoderLayer"),
    "both": ("BranchformerEncoder", {**ATTENTION, "stochastic_depth_rate": 0.25}, "BranchformerEncoderLayer"),
    "e_branchformer": ("EBranchformerEncoder", {"layer_drop_rate": RATE}, "MultiSequential"),
}
NAMES = pytest.mark.parametrize("name", ENCODERS)


def build(name: str, **more: Any) -> Any:
    import funasr  # noqa: F401
    from funasr.register import tables

    kind, conf, _ = ENCODERS[name]
    torch.manual_seed(0)
    return tables.encoder_classes[kind](input_size=80, **{**recipes._ENCODERS[kind], **conf, **more}).train()


def home(name: str) -> Tuple[Any, type]:
    """(module, class) of what draws."""
    drawing = ENCODERS[name][2]
    module = importlib.import_module(HOMES[drawing])
    return module, getattr(module, drawing)


def put(site: Site, setting: str = "sync") -> None:
    import funasr  # noqa: F401

    site.settings = {"layerdrop": setting}

    for drawing, module in HOMES.items():
        layerdrop.put(site, importlib.import_module(module), getattr(importlib.import_module(module), drawing))


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site("test")
    yield made
    made.undo()


def loss(encoder: Any, seed: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    speech = torch.randn(3, 60, 80, generator=random).requires_grad_(True)
    out = encoder(speech, torch.tensor([60, 51, 44]))[0]
    out = out[0] if isinstance(out, tuple) else out
    return (out * torch.randn(out.shape, generator=random)).sum()


def gradients(encoder: Any) -> Dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None}


def same(one: Dict[str, torch.Tensor], other: Dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@contextlib.contextmanager
def scripted(decisions: Sequence[bool], vector: bool) -> Iterator[None]:
    """Plain draws that make these decisions, in this order; a number for each must have been requested.

    Stacks draw a vector even where nothing is skipped, so each decision names its kind of draw.
    """
    left = list(decisions)
    original_rand, original_uniform = torch.rand, torch.Tensor.uniform_

    def number() -> float:
        return 0.0 if left.pop(0) else 0.99

    def rand(*size: Any, **kwargs: Any) -> Any:
        value = original_rand(*size, **kwargs)
        return torch.tensor([number()]) if size == (1,) and not vector else value

    def uniform_(self: Any, *args: Any, **kwargs: Any) -> Any:
        original_uniform(self, *args, **kwargs)
        for index in range(len(self) if vector else 0):
            self[index] = number()
        return self

    torch.rand, torch.Tensor.uniform_ = rand, uniform_  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.rand, torch.Tensor.uniform_ = original_rand, original_uniform  # type: ignore[method-assign]
    assert not left, f"{len(left)} decisions were not drawn"


@pytest.mark.patches("funasr.layerdrop")
@NAMES
def test_equals_unpatched_with_the_same_decisions(name: str, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    put(site)
    taken = decided([], monkeypatch.setattr)
    outcomes = []
    for seed in range(4):
        taken.clear()
        encoder = build(name)
        with training.step(training.Replica(encoder, seed)) as step:
            total = loss(encoder)
        total.backward()
        decisions = list(taken)
        assert len(step.skipped) == sum(decisions)
        outcomes.append((decisions, total.detach(), gradients(encoder)))
    assert len({tuple(decisions) for decisions, _, _ in outcomes}) > 1
    site.undo()
    for decisions, total, grads in outcomes:
        encoder = build(name)
        with scripted(decisions, vector=name == "e_branchformer"):
            expected = loss(encoder)
        expected.backward()
        assert torch.equal(total, expected.detach())
        assert same(grads, gradients(encoder))


@pytest.mark.patches("funasr.layerdrop")
@NAMES
def test_skips_are_named_by_list_index_and_branch(name: str, site: Site) -> None:
    put(site)
    encoder = build(name)
    skips = set()
    for seed in range(30):
        with training.step(training.Replica(encoder, seed)) as step:
            loss(encoder)
        skips |= {(skip.module, skip.layer, skip.part) for skip in step.skipped}
    parts = {"attention": {"attn_branch"}, "both": {"", "attn_branch"}}.get(name, {""})
    assert skips == {("encoders", layer, part) for layer in range(4) for part in parts}


@pytest.mark.patches("funasr.layerdrop")
@pytest.mark.parametrize("name", ("conformer", "branchformer", "attention", "e_branchformer"))
def test_generators_advance_as_without_ddpfix(name: str, site: Site) -> None:
    encoder = build(name)
    torch.manual_seed(7)
    loss(encoder)
    unpatched = torch.get_rng_state()
    put(site)
    torch.manual_seed(7)
    with training.step(training.Replica(encoder, 3)) as step:
        loss(encoder)
    assert step.calls, "no class of ours was called"
    assert torch.equal(torch.get_rng_state(), unpatched)


@pytest.mark.patches("funasr.layerdrop")
@NAMES
def test_decisions_do_not_depend_on_the_generator(name: str, site: Site) -> None:
    put(site)
    encoder = build(name)
    outcomes = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        losses, skipped = [], []
        for seed in range(5, 9):
            with training.step(training.Replica(encoder, seed)) as step:
                losses.append(loss(encoder).detach())
            skipped += step.skipped
        outcomes.append((torch.stack(losses), skipped))
    assert torch.equal(outcomes[0][0], outcomes[1][0])
    assert outcomes[0][1] == outcomes[1][1] != []


@pytest.mark.patches("funasr.layerdrop")
@NAMES
def test_outside_of_a_wrapped_model_and_in_evaluation_the_original_decides(name: str, site: Site) -> None:
    evaluated = loss(build(name).eval())
    encoder = build(name)
    torch.manual_seed(7)
    unpatched = loss(encoder)
    put(site)
    torch.manual_seed(7)
    assert torch.equal(loss(encoder), unpatched)
    with training.step(training.Replica(encoder, 3)) as step:
        assert torch.equal(loss(build(name).eval()), evaluated)
    assert step.skipped == []


@pytest.mark.patches("funasr.layerdrop")
@NAMES
def test_the_rate_in_force_is_found(name: str, site: Site) -> None:
    for covered in (False, True):
        if covered:
            put(site)
        rates = {part: rate for part, _, rate in cover.active(build(name))}
        layers = ["encoders"] if name == "e_branchformer" else [f"encoders.{layer}" for layer in range(4)]
        assert rates == dict.fromkeys(layers, RATE)


@pytest.mark.patches("funasr.layerdrop")
def test_a_branch_that_is_never_dropped_is_not_counted(site: Site) -> None:
    put(site)
    assert cover.active(build("attention", merge_method="concat")) == []


@pytest.mark.patches("funasr.layerdrop")
@NAMES
def test_off_is_rate_0(name: str, site: Site) -> None:
    expected = loss(build(name, **{key: 0.0 for key in ENCODERS[name][1] if "rate" in key}))
    put(site, "off")
    encoder = build(name)
    assert cover.active(encoder) == []
    assert all(torch.equal(loss(encoder), expected) for _ in range(3))
    with training.step(training.Replica(encoder, 3)) as step:
        assert torch.equal(loss(encoder), expected)
    assert step.skipped == []


@pytest.mark.patches("funasr.layerdrop")
@NAMES
def test_the_drop_rate_is_the_configured_rate(name: str, site: Site) -> None:
    put(site)
    encoder = build(name, num_blocks=2, linear_units=4) if name == "conformer" else build(name, num_blocks=2)
    replica, rounds, layers = training.Replica(encoder, 11), 150, 2
    whole = branch = 0
    for _ in range(rounds):
        with training.step(replica) as step:
            loss(encoder)
        whole += sum(skip.part == "" for skip in step.skipped)
        branch += sum(skip.part != "" for skip in step.skipped)
    rates = ENCODERS[name][1]
    depth = rates.get("stochastic_depth_rate", rates.get("layer_drop_rate", 0.0))
    near(whole, rounds * layers, depth)
    near(branch, rounds * layers - whole, rates.get("attn_branch_drop_rate", 0.0))


def near(count: int, trials: int, rate: float) -> None:
    """Four standard deviations of a binomial distribution; the seed is fixed."""
    assert abs(count - trials * rate) <= 4 * math.sqrt(trials * rate * (1 - rate)), (count, trials, rate)


# Recomputation repeats the decisions.


def around(what: Any, reentrant: bool) -> None:
    """Checkpoint each call of a layer or of a whole stack, by torch's own function."""
    original = type(what).forward

    def forward(x_input: Any, mask: Any) -> Any:
        x, pos = x_input

        def run(x: Any, pos: Any, mask: Any) -> Any:
            (out, _), _ = original(what, (x, pos), mask)
            return out

        return (run_again(run, x, pos, mask, use_reentrant=reentrant), pos), mask

    what.forward = forward


@pytest.mark.patches("funasr.layerdrop")
@pytest.mark.parametrize("reentrant", (False, True), ids=("non-reentrant", "reentrant"))
@pytest.mark.parametrize("where", ("layer", "stack", "encoder"))
@NAMES
def test_recomputation_repeats_the_decisions(name: str, where: str, reentrant: bool, site: Site) -> None:
    put(site)
    outcomes = []
    for again in (False, True):
        encoder = build(name)
        replica = training.Replica(encoder, 3)
        if again and where != "encoder":
            for part in [encoder.encoders] if where == "stack" else encoder.encoders:
                around(part, reentrant)
        totals = []
        for seed in range(2):
            with training.step(replica) as step:
                run: Any = lambda x: loss(encoder, seed)  # noqa: E731, B023
                checkpointed = again and where == "encoder"
                anchor = torch.zeros((), requires_grad=True)
                totals.append(run_again(run, anchor, use_reentrant=reentrant) if checkpointed else run(anchor))
            assert step.skipped
            if where == "encoder" or reentrant:
                # Two encoders that wait for their backward at once look alike to this one function of no tensors.
                totals[-1].backward()
        if not (where == "encoder" or reentrant):
            sum(totals).backward()
        outcomes.append(([total.detach() for total in totals], gradients(encoder)))
    assert all(map(torch.equal, outcomes[0][0], outcomes[1][0]))
    assert same(outcomes[0][1], outcomes[1][1])


@pytest.mark.patches("funasr.layerdrop")
@pytest.mark.parametrize("first", (layerdrop.put, checkpoint.layers))
def test_together_with_our_checkpointed_layers(first: Any, site: Site) -> None:
    module, owner = home("branchformer")
    outcomes = []
    for both in (False, True):
        second = checkpoint.layers if first is layerdrop.put else layerdrop.put
        for function in (first, second) if both else (layerdrop.put,):
            function(site, module, owner)
        encoder = build("both")
        with training.step(training.Replica(encoder, 3)):
            total = loss(encoder)
        total.backward()
        outcomes.append((total.detach(), gradients(encoder)))
        site.undo()
    assert torch.equal(outcomes[0][0], outcomes[1][0])
    assert same(outcomes[0][1], outcomes[1][1])


@pytest.mark.patches("funasr.layerdrop")
def test_other_layers_are_covered_when_a_model_is_wrapped(site: Site) -> None:
    from funasr.models.transformer.encoder import EncoderLayer

    layerdrop.put_at_wrap(site, torch.nn.parallel.distributed, torch.nn.parallel.DistributedDataParallel)
    inner = EncoderLayer(4, torch.nn.Identity(), torch.nn.Identity(), 0.0)
    inner.self_attn.forward = lambda q, k, v, mask: q  # type: ignore[method-assign]
    inner.stochastic_depth_rate = RATE
    # A layer that nobody has examined counts beside another one of its class.
    model = torch.nn.ModuleList([inner, EncoderLayer(4, torch.nn.Identity(), torch.nn.Identity(), 0.0)])
    wrap_hooks.run_before_wrap(model)
    skips = []
    for seed in range(8):
        with training.step(training.Replica(model, seed)) as step:
            inner.train()(torch.ones(1, 2, 4), None)
        skips += step.skipped
    assert set(skips) == {training.Skip("", 0, 0)}
    assert 0 < len(skips) < 8


# Two ranks, through FunASR's own entry. Before 1.0.6 these three models cannot be built ("get_class").

MODELS = {"conformer": "Conformer", "both": "Branchformer", "e_branchformer": "EBranchformer"}
# The older samplers leave one batch out.
STEPS = 4 if RELEASE >= (1, 0, 18) else 3
NOTE = """
from torch.optim.optimizer import register_optimizer_step_pre_hook
from ddpfix.layerdrop import training
def note(optimizer, args, kwargs):
    skipped = [[s.module, s.call, s.layer, s.part] for s in training.skipped_layers(recorder.model)]
    recorder.record.setdefault("skips", []).append(skipped)
register_optimizer_step_pre_hook(note)
"""
STAND_IN = "from tests.funasr import stand_in\nstand_in.cuda()\n"
# Unpatched, edited by hand: the flag as its maintainers advise, and the decisions of the other run.
BY_HAND = """
import torch
from torch.nn.parallel import DistributedDataParallel
def init(self, *args, original=DistributedDataParallel.__init__, **kwargs):
    original(self, *args, **{{**kwargs, "find_unused_parameters": True}})
DistributedDataParallel.__init__ = init
decisions = {decisions}
def rand(*size, original=torch.rand, **kwargs):
    value = original(*size, **kwargs)
    return torch.tensor([0.0 if decisions.pop(0) else 0.99]) if size == (1,) else value
torch.rand = rand
"""
# One rank skips all of its layers, the other none.
APART = """
import torch
def rand(*size, original=torch.rand, **kwargs):
    value = original(*size, **kwargs)
    return torch.tensor([0.0 if rank else 0.99]) if size == (1,) else value
torch.rand = rand
"""
TWO_RANKS = pytest.mark.skipif(RELEASE < (1, 0, 6), reason="conformer-like models cannot be built")


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Path]:
    """Dithering draws from the CPU generator, as much as the utterances of a rank are long: the generators part."""
    folder = tmp_path_factory.mktemp("layerdrop")
    epochs = 0 if RELEASE < (1, 0, 26) else 1
    changes: Dict[str, Any] = {"frontend_conf": {"dither": 1.0}, "train_conf": {"max_epoch": epochs}}
    return {
        name: recipes.write(folder / name, model, encoder_conf=ENCODERS[name][1], **changes)
        for name, model in MODELS.items()
    }


@pytest.fixture(scope="module")
def patched(configs: Dict[str, Path]) -> Dict[str, List[launch.Result]]:
    wanted = [launch.Scenario(name, config, before=NOTE) for name, config in configs.items()]
    alone = trained.only("funasr.flag", "funasr.layerdrop")
    return launch.train(wanted, configs["both"].parent / "patched", True, environ=alone)


@pytest.fixture(scope="module")
def unpatched(configs: Dict[str, Path], patched: Dict[str, List[launch.Result]]) -> Dict[str, List[launch.Result]]:
    steps = patched["conformer"][0].notes["skips"]
    decisions = [["encoder.encoders", 0, layer, ""] in step for step in steps for layer in range(4)]
    edited = STAND_IN + BY_HAND.format(decisions=json.dumps(decisions).replace("t", "T").replace("f", "F"))
    wanted = [launch.Scenario(name, config, before=STAND_IN, timeout=12) for name, config in configs.items()]
    wanted += [
        launch.Scenario("edited", configs["conformer"], before=edited),
        launch.Scenario("apart", configs["both"], before=STAND_IN + APART, timeout=12),
    ]
    return launch.train(wanted, configs["both"].parent / "unpatched", False)


@TWO_RANKS
@pytest.mark.parametrize("name", MODELS)
def test_unpatched_fails_or_hangs(name: str, unpatched: Dict[str, List[launch.Result]]) -> None:
    results = unpatched[name]
    if RELEASE == (1, 0, 24):
        assert all(result.error is None for result in results)
        return
    assert any(result.hung or REDUCTION in str(result.error) for result in results)
    assert all(len(result.steps) < STEPS for result in results)


@TWO_RANKS
@pytest.mark.skipif(RELEASE == (1, 0, 24), reason="find_unused_parameters is True there")
def test_unpatched_ranks_that_skip_different_layers_wait_for_each_other(
    unpatched: Dict[str, List[launch.Result]],
) -> None:
    assert any(result.hung or "mismatch" in str(result.error) for result in unpatched["apart"]), unpatched["apart"]


@pytest.mark.patches("funasr.layerdrop")
@TWO_RANKS
@pytest.mark.parametrize("name", MODELS)
def test_ranks_skip_the_same_layers_and_stay_identical(name: str, patched: Dict[str, List[launch.Result]]) -> None:
    results = patched[name]
    assert [result.error for result in results] == [None, None]
    assert [result.ddp[0]["find_unused"] for result in results] == [True, True]
    assert trained.same_steps(results)
    skips = [result.notes["skips"] for result in results]
    assert skips[0] == skips[1]
    assert len(skips[0]) == STEPS
    assert len({json.dumps(step) for step in skips[0]}) > 1


@pytest.mark.patches("funasr.layerdrop")
@TWO_RANKS
def test_it_trains_as_unpatched_edited_by_hand_with_the_same_decisions(patched: Any, unpatched: Any) -> None:
    assert [result.error for result in unpatched["edited"]] == [None, None]
    assert trained.same_steps([*patched["conformer"], *unpatched["edited"]])
