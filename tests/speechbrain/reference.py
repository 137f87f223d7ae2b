"""Gradients without DDP and without ddpfix: one process computes what the ranks should have ended with.

For each kept optimizer step it loads the weights, runs each rank's batches one after the other with just the layers
that ran there, and averages over ranks. A parameter that a rank did not use counts as zero there.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ContextManager, Dict, Mapping, Sequence, Tuple

ROOT = Path(__file__).resolve().parent.parent.parent


# name -> (hyperparameters, the ranks' files (``Result.kept``), fp32 or bf16)
Requests = Mapping[str, Tuple[Path, Sequence[Path], str]]


def errors(requests: Requests) -> Dict[str, float]:
    """The largest difference of a gradient in each run, as a part of its parameter's largest gradient (or of 1)."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DDPFIX")}
    as_json = {name: [str(yaml), [str(file) for file in kept], kind] for name, (yaml, kept, kind) in requests.items()}
    command = [sys.executable, "-W", "ignore", "-m", "tests.speechbrain.reference"]
    done = subprocess.run(
        command, input=json.dumps(as_json), cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True, check=True
    )
    result: Dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def requests(results: Mapping[str, Sequence[Any]], yamls: Mapping[str, Path]) -> Requests:
    """What :func:`errors` is to look at: all runs that ended and kept steps; bf16 where their name says so.

    Args:
        results: the outcome of :func:`tests.speechbrain.launch.train`.
        yamls: by the beginning of a run's name, the longest one counts; "" for all others.
    """
    result = {}
    for name, ranks in results.items():
        kept = [rank.kept for rank in ranks if rank.kept is not None and rank.error is None]
        if len(kept) == len(ranks):
            yaml = yamls[max((key for key in yamls if name.startswith(key)), key=len)]
            result[name] = (yaml, kept, "bf16" if "bf16" in name else "fp32")
    return result


def _main() -> None:
    as_json = json.loads(sys.stdin.read())
    print(json.dumps({name: _error(*request) for name, request in as_json.items()}))


def _error(yaml: str, files: Sequence[str], precision: str) -> float:
    import torch

    brain, data = _built(yaml)
    ranks = [torch.load(file, weights_only=False) for file in files]
    return max(_step(brain, data, steps, precision) for steps in zip(*ranks))


@functools.lru_cache(maxsize=None)
def _built(yaml: str) -> Tuple[Any, Any]:
    """The recipe's Brain on one process, and its training data."""
    import speechbrain
    from hyperpyyaml import load_hyperpyyaml

    file, _, overrides = speechbrain.parse_arguments([yaml, "--device=cpu"])
    with open(file) as text:
        hparams = load_hyperpyyaml(text, overrides)
    recipe = _recipe()
    brain = recipe.ASR(hparams["modules"], hparams=hparams, run_opts={"device": "cpu"})
    brain.modules.train()
    return brain, recipe.dataio_prepare(hparams)[0]


def _step(brain: Any, data: Any, steps: Sequence[Dict[str, Any]], precision: str) -> float:
    """One optimizer step of all ranks."""
    import speechbrain
    import torch

    context: ContextManager[Any] = contextlib.nullcontext()
    means: Dict[str, Any] = {}
    for step in steps:
        _load(brain, step["before"])
        for ids, ran in zip(step["batches"], step["ran"] or [None] * len(step["batches"])):
            if precision == "bf16":
                context = torch.autocast("cpu", dtype=torch.bfloat16)
            with _only(brain, ran):
                with context:
                    batch = _batch(data, ids)
                    outputs = brain.compute_forward(batch, speechbrain.Stage.TRAIN)
                    loss = brain.compute_objectives(outputs, batch, speechbrain.Stage.TRAIN)
                (loss / len(step["batches"])).backward()
        for name, parameter in brain.modules.named_parameters():
            if parameter.grad is not None:
                part = parameter.grad / len(steps)
                means[name] = part if name not in means else means[name] + part
                parameter.grad = None
    return max(_difference(step["grads"], means) for step in steps)


def _recipe() -> Any:
    spec = importlib.util.spec_from_file_location("recipe", Path(__file__).parent / "recipe" / "train.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _load(brain: Any, before: Dict[str, Any]) -> None:
    import torch

    with torch.no_grad():
        for name, parameter in brain.modules.named_parameters():
            parameter.copy_(before[name])


@contextlib.contextmanager
def _only(brain: Any, ran: Any) -> Any:
    """The encoder has those of its layers that ran, and skips none of them."""
    encoder = next(
        (m for n, m in brain.modules.wav2vec2.named_modules() if hasattr(m, "layers") and n.endswith("encoder")), None
    )
    if encoder is None or ran is None:
        yield
        return
    kept = {int(name.rpartition(".")[2]) for name in ran}
    skipped = [layer for n, layer in enumerate(encoder.layers) if n not in kept]
    places = ((encoder, "layerdrop_prob"), (encoder, "layerdrop"), (getattr(encoder, "config", None), "layerdrop"))
    holder, attribute = next(place for place in places if hasattr(*place))
    rate = getattr(holder, attribute)
    setattr(holder, attribute, 0.0)
    for layer in skipped:
        layer.forward = _returned
    try:
        yield
    finally:
        setattr(holder, attribute, rate)
        for layer in skipped:
            del layer.forward


def _returned(hidden_states: Any, *args: Any, position_bias: Any = None, **kwargs: Any) -> Any:
    """The forward of a skipped layer, which stays in place: transformers 5 records by hooks what layers return."""
    if "pos_bias" in kwargs:
        return hidden_states, None, kwargs["pos_bias"]
    return hidden_states, position_bias


def _batch(data: Any, ids: Sequence[str]) -> Any:
    from speechbrain.dataio.batch import PaddedBatch

    places = {name: place for place, name in enumerate(data.data_ids)}
    return PaddedBatch([data[places[name]] for name in ids])


def _difference(grads: Dict[str, Any], means: Dict[str, Any]) -> float:
    """A parameter without a gradient counts as one with zeros."""
    import torch

    worst = 0.0
    for name, grad in grads.items():
        mine = torch.zeros(()) if grad is None else grad
        other = means.get(name, torch.zeros(()))
        worst = max(worst, float((mine - other).abs().max()) / max(1.0, float(other.abs().max())))
    return worst


if __name__ == "__main__":
    _main()
