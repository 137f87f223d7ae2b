"""FunASR's own model classes, tiny and random, in this process, with random batches in the form its datasets give."""

from __future__ import annotations

import inspect
import itertools
from pathlib import Path
from typing import Any, Callable, Dict, Iterator

import torch

from tests.funasr import launch, recipes


def build(name: str, seed: int = 0, **changes: Any) -> Any:
    """A model of class ``name`` as FunASR builds it from a configuration with ``changes`` merged into it."""
    import funasr  # noqa: F401
    from funasr.register import tables

    whole = recipes._merged(recipes.config(name, Path()), changes)
    torch.manual_seed(seed)
    return tables.model_classes[whole["model"]](**{**whole["model_conf"], **whole, "vocab_size": len(recipes.TOKENS)})


def batch(seed: int = 0, size: int = 3) -> Dict[str, Any]:
    """Random speech, text and hotwords; lengths differ within the batch and from batch to batch."""
    random = torch.Generator().manual_seed(seed)

    def integer(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=random))

    frames = torch.tensor([integer(20, 40) for _ in range(size)])
    words = torch.tensor([integer(3, 8) for _ in range(size)])
    text = torch.full((size, int(words.max())), -1)
    for row, count in zip(text, words):
        row[: int(count)] = torch.randint(3, 29, (int(count),), generator=random)
    hotwords = torch.tensor([integer(1, 4) for _ in range(4)])
    return {
        "speech": torch.randn(size, int(frames.max()), 560, generator=random),
        "speech_lengths": frames,
        "text": text,
        "text_lengths": words,
        "hotword_pad": torch.randint(3, 29, (4, int(hotwords.max())), generator=random),
        "hotword_lengths": hotwords,
        "seaco_label_pad": text.clone(),
    }


def chunked() -> Dict[str, Any]:
    """The part of a configuration that asks for the encoder of the streaming models."""
    sizes = {"chunk_size": [5, 10], "stride": [4, 8], "pad_left": [0, 0]}
    look_back = {"encoder_att_look_back_factor": [0, 0], "decoder_att_look_back_factor": [0, 0]}
    return {"encoder": "SANMEncoderChunkOpt", "encoder_conf": {**sizes, **look_back}}


def idle(model: Any, batches: int = 6) -> Dict[str, int]:
    """How many of ``batches`` random batches left a parameter without gradient, for those that ever were."""
    model.train()
    counts: Dict[str, int] = {}
    parameters = inspect.signature(model.forward).parameters
    everything = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    seeds = itertools.count()
    for _ in range(batches):
        model.zero_grad(set_to_none=True)
        _loss(model, seeds, lambda name: everything or name in parameters).backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is None:
                counts[name] = counts.get(name, 0) + 1
    return counts


def _loss(model: Any, seeds: Iterator[int], wanted: Callable[[str], bool]) -> Any:
    """Of the next batch. In 1.0.28 CIF fires one token too few for some, of which the model dies."""
    for seed in itertools.islice(seeds, 20):
        given = {name: value for name, value in batch(seed).items() if wanted(name)}
        try:
            return model(**given)[0]
        except RuntimeError as error:
            if launch.version() != "1.0.28" or "must match the size" not in str(error):
                raise
    raise AssertionError("no batch that this release can train")
