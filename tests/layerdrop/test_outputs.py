"""Outputs of skipped layers: recorded where the unpatched toolkit leaves a gap and fails."""

from __future__ import annotations

import importlib
from typing import Any, List

import pytest
import torch
import transformers
from ddpfix.patches.common import layerdrop
from ddpfix.patches.transformers import recording
from packaging.version import Version

from ddpfix.layerdrop import training
from ddpfix.patching.site import Site
from tests.support import zoo

pytestmark = pytest.mark.patches("transformers.recording")

RELEASE = Version(transformers.__version__)
LAYERS = 4
WHISPER = pytest.mark.skipif(Version("4.23") > RELEASE, reason="Whisper came with 4.23")


def patch(site: Site, entry: zoo.TinyModel) -> None:
    layerdrop.in_modules(site, importlib.import_module(entry.module()), None)
    if Version("5.2") <= RELEASE:
        recording.skipped(site, transformers, None)


def classifier(weighted: bool) -> torch.nn.Module:
    config = zoo.tiny_model("wavlm").make_config(0.5)
    config.use_weighted_layer_sum = weighted
    torch.manual_seed(0)
    return transformers.WavLMForSequenceClassification(config).train()


def a_step_that_skips(model: torch.nn.Module, **inputs: Any) -> Any:
    """The first output under a seed with which at least one layer, and not the first, is skipped."""
    for seed in range(50):
        with training.step(training.Replica(model, seed)) as step:
            output = model(**inputs)
        if step.skipped:
            return output, [skip.layer for skip in step.skipped]
    raise AssertionError("no seed skipped a layer")


def sound() -> torch.Tensor:
    return zoo.tiny_model("wavlm").batch()["input_values"]


@pytest.mark.skipif(Version("5.15") > RELEASE, reason="WavLM records with hooks in 5.17.0, and not yet in 5.14.1")
def test_weighted_layer_sum_fails_unpatched() -> None:
    model = classifier(weighted=True)
    torch.manual_seed(0)
    with pytest.raises(RuntimeError, match="must match the size of tensor"):
        for _ in range(20):
            model(input_values=sound())


def test_weighted_layer_sum(site: Site) -> None:
    patch(site, zoo.tiny_model("wavlm"))
    model = classifier(weighted=True)
    output, _ = a_step_that_skips(model, input_values=sound())
    output.logits.sum().backward()
    assert model.layer_weights.grad.abs().min() > 0


def test_weighted_layer_sum_on_one_process(site: Site) -> None:
    patch(site, zoo.tiny_model("wavlm"))
    model = classifier(weighted=True)
    torch.manual_seed(0)
    for _ in range(20):
        model(input_values=sound()).logits.sum().backward()


@pytest.mark.parametrize("name", ("wavlm", "wav2vec2", "bart", "opt", pytest.param("whisper", marks=WHISPER)))
def test_a_skipped_layer_gives_its_input(site: Site, name: str) -> None:
    entry = zoo.tiny_model(name)
    if not entry.survives():
        pytest.skip("unpatched, this release fails where a layer is skipped")
    model = entry.build()
    patch(site, entry)
    for seed in range(20):
        with training.step(training.Replica(model, seed)) as step:
            output = model(**entry.batch(), output_hidden_states=True)
        for stack, entries in stacks(output):
            left_out = {skip.layer for skip in step.skipped if stack in skip.module or not stack}
            if stack in ("encoder", "decoder") and not any("coder" in skip.module for skip in step.skipped):
                left_out = {skip.layer for skip in step.skipped}
            check(entries, left_out)


def stacks(output: Any) -> List[Any]:
    both = [
        (stack, output[key])
        for stack, key in (("encoder", "encoder_hidden_states"), ("decoder", "decoder_hidden_states"))
        if output.get(key) is not None
    ]
    return both or [("", output.hidden_states)]


def check(entries: Any, left_out: Any) -> None:
    if len(left_out) == LAYERS:
        # Nothing ran: there is nothing to complete.
        return
    assert len(entries) == LAYERS + 1, (len(entries), left_out)
    # The last entry is the stack's output, after its final normalisation.
    for layer in range(LAYERS - 1):
        same = torch.equal(entries[layer], entries[layer + 1])
        assert same == (layer in left_out), (layer, left_out)


def test_attentions_of_wavlm(site: Site) -> None:
    """Up to 4.36 the unpatched toolkit raises IndexError in the first step that skips a layer."""
    patch(site, zoo.tiny_model("wavlm"))
    output, _ = a_step_that_skips(classifier(weighted=False), input_values=sound(), output_attentions=True)
    output.logits.sum().backward()
    assert any(attention is not None for attention in output.attentions)


@pytest.mark.skipif(Version("4.38") <= RELEASE, reason="mended upstream after 4.36")
def test_attentions_of_wavlm_fail_unpatched() -> None:
    model = classifier(weighted=False)
    with pytest.raises(IndexError):
        for _ in range(20):
            model(input_values=sound(), output_attentions=True)
