"""Activation checkpointing of encoder layers: less is kept, and everything else is as it was, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ContextManager, Dict, Iterator, List, Tuple

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from tests.funasr import recipes, trained

pytestmark = pytest.mark.patches("funasr.checkpoint")

RELEASE = trained.release()
# The wheel of 1.1.17 lacks a part of this model, which can then not be imported.
SENSE_VOICE = RELEASE >= (1, 0, 30) and RELEASE != (1, 1, 17)
SANM: Dict[str, Any] = {**recipes._ENCODERS["SANMEncoder"], "num_blocks": 4}
CHUNKS: Dict[str, Any] = {"chunk_size": [8, 16], "stride": [4, 8], "pad_left": [2, 4]}
# What a convolution in front of the layers keeps would hide what they keep.
LINEAR: Dict[str, Any] = {"input_layer": "linear"}
FORMERS = ("ConformerEncoder", "BranchformerEncoder", "EBranchformerEncoder", "TransformerEncoder")
ENCODERS: Dict[str, Dict[str, Any]] = {
    **{name: {**recipes._ENCODERS[name], **LINEAR} for name in FORMERS},
    "SANMEncoder": SANM,
    "SANMEncoderChunkOpt": {
        **SANM,
        **CHUNKS,
        "encoder_att_look_back_factor": [2, 2],
        "decoder_att_look_back_factor": [1, 1],
    },
    **({"SenseVoiceEncoderSmall": {**SANM, "tp_blocks": 2}} if SENSE_VOICE else {}),
}
DROPOUTS = ("dropout_rate", "positional_dropout_rate", "attention_dropout_rate")
LAYERS = ("EncoderLayer", "EncoderLayerSANM", "BranchformerEncoderLayer", "EBranchformerEncoderLayer")


def checkpointed(*patches: str) -> ContextManager[None]:
    return trained.active("funasr.checkpoint", *patches, funasr_checkpoint="1")


def encoder(name: str, dropout: float = 0.0, **more: Any) -> torch.nn.Module:
    import funasr  # noqa: F401
    from funasr.register import tables

    torch.manual_seed(0)
    conf = {**ENCODERS[name], **dict.fromkeys(DROPOUTS, dropout), **more}
    made: torch.nn.Module = tables.encoder_classes[name](input_size=560, **conf)
    return made.train()


class Step:
    """One forward and backward: the output, gradients, buffers, the random state after it, and bytes that were kept."""

    def __init__(self, module: torch.nn.Module, wrapper: Any = None, seed: int = 2) -> None:
        speech = torch.randn(2, 40, 560, generator=torch.Generator().manual_seed(1))
        self.kept = 0
        torch.manual_seed(seed)
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor):
            self.output = (wrapper or module)(speech, torch.tensor([40, 30]))[0]
        (self.output**2).sum().backward()
        self.state: List[torch.Tensor] = [torch.default_generator.get_state(), *module.state_dict().values()]
        self.gradients = {name: p.grad for name, p in module.named_parameters()}

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self.kept += tensor.numel() * tensor.element_size()
        return tensor

    def equals(self, other: Step) -> bool:
        pairs: List[Tuple[Any, Any]] = [(self.output, other.output), *zip(self.state, other.state)]
        pairs += [(self.gradients[name], other.gradients[name]) for name in self.gradients]
        return all((a is None and b is None) or torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("name", list(ENCODERS))
def test_same_gradients_and_less_is_kept(name: str, dropout: float) -> None:
    unpatched = Step(encoder(name, dropout))
    with checkpointed():
        ours = Step(encoder(name, dropout))
    # Batch norm's averages are in the state: a layer that runs twice must not count twice.
    assert ours.equals(unpatched)
    assert all(gradient is not None for gradient in ours.gradients.values())
    assert ours.kept < 0.5 * unpatched.kept


@pytest.mark.parametrize("name", list(ENCODERS))
def test_evaluation_and_undo(name: str) -> None:
    module = encoder(name)
    layer = next(type(part) for part in module.modules() if type(part).__name__ in LAYERS)
    before = vars(layer)["forward"]
    speech, lengths = torch.randn(2, 40, 560), torch.tensor([40, 30])
    with torch.no_grad():
        # Some encoders scale their input in place.
        unpatched = module.eval()(speech.clone(), lengths)[0]
    calls: List[int] = []
    with checkpointed(), pytest.MonkeyPatch.context() as patch:
        assert vars(layer)["forward"] is not before
        patch.setattr("torch.utils.checkpoint.checkpoint", lambda *a, **k: calls.append(1))
        with torch.no_grad():
            assert torch.equal(module(speech.clone(), lengths)[0], unpatched)
    assert vars(layer)["forward"] is before and not calls


@pytest.fixture()
def group(tmp_path: Path) -> Iterator[None]:
    with trained.alone(tmp_path):
        yield


SKIPPING: Dict[str, Dict[str, Any]] = {
    "ConformerEncoder": {"stochastic_depth_rate": 0.5, "num_blocks": 6},
    "BranchformerEncoder": {"stochastic_depth_rate": 0.3, "attn_branch_drop_rate": 0.3, "merge_method": "learned_ave"},
    "EBranchformerEncoder": {"layer_drop_rate": 0.5, "num_blocks": 6},
}


@pytest.mark.parametrize("patches", [(), ("funasr.layerdrop",)], ids=["unpatched", "shared"])
@pytest.mark.parametrize("name", list(SKIPPING))
def test_skipped_layers_are_skipped_again(name: str, patches: Tuple[str, ...], group: None) -> None:
    def steps() -> List[Step]:
        torch.manual_seed(3)
        module = encoder(name, 0.1, **SKIPPING[name])
        wrapper = DistributedDataParallel(module, find_unused_parameters=True)
        # Each step has decisions of its own: with one seed they may all leave out all layers.
        return [Step(module, wrapper, seed) for seed in range(4)]

    with trained.active(*patches):
        unpatched = steps()
    with checkpointed(*patches):
        ours = steps()
    assert any(gradient is None for step in unpatched for gradient in step.gradients.values()), "nothing was skipped"
    assert all(a.equals(b) for a, b in zip(ours, unpatched))
    assert sum(step.kept for step in ours) < 0.6 * sum(step.kept for step in unpatched)
