"""Fine-tunes a tiny random model on synthetic data, under torchrun. An ordinary script: it knows nothing of ddpfix.

Each rank writes one JSON line a step: the loss, and which layers were not called. Hooks on the layers record
that, so the record is the same for an unpatched run as for any other.
"""

from __future__ import annotations

import faulthandler

# A rank that is stuck prints its stack and ends, so that none is left behind.
faulthandler.dump_traceback_later(240, exit=True)

import argparse  # noqa: E402
import hashlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any, Callable, Dict, List, Set  # noqa: E402

import torch  # noqa: E402
import transformers  # noqa: E402
from torch import distributed  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.data import DataLoader, DistributedSampler  # noqa: E402

RANKS, BATCH, RATE = 2, 8, 2e-3
Example = Dict[str, torch.Tensor]


def wavlm() -> Any:
    """Six layers, of which each training forward skips about two; dropout as in the released checkpoints."""
    config = transformers.WavLMConfig(
        hidden_size=48,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=96,
        conv_dim=(32, 32, 32),
        conv_kernel=(10, 3, 3),
        conv_stride=(5, 2, 2),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        classifier_proj_size=32,
        num_labels=2,
        layerdrop=0.4,
        # Torch 2.0 and 2.1 on a CPU write what is in memory where the gradient of a GELU is transposed.
        feat_extract_activation="relu" if torch.__version__.startswith(("2.0.", "2.1.")) else "gelu",
    )
    return transformers.WavLMForSequenceClassification(config)


class Tones:
    """Utterances of unequal length: one of two tones, in noise."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Example:
        generator = torch.Generator().manual_seed(index)
        length = int(torch.randint(1600, 3200, (), generator=generator))
        noise, phase = torch.randn(length, generator=generator), torch.rand((), generator=generator)
        cycles = (500.0 + 1500.0 * (index % 2)) / 16000 * torch.arange(length)
        return {"input_values": torch.sin(6.2832 * (cycles + phase)) + 0.2 * noise, "labels": torch.tensor(index % 2)}

    @staticmethod
    def collate(examples: List[Example]) -> Example:
        values = [example["input_values"] for example in examples]
        padded = torch.nn.utils.rnn.pad_sequence(values, batch_first=True)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(v), dtype=torch.long) for v in values], batch_first=True)
        labels = torch.stack([example["labels"] for example in examples])
        return {"input_values": padded, "attention_mask": mask, "labels": labels}


class Record:
    """Notes which layers a training forward calls, and writes it at its end: in a failing step, no backward may end."""

    def __init__(self, folder: Path, model: Any, limit: float) -> None:
        self.rank = int(os.environ["RANK"])
        self.file = (folder / f"rank-{self.rank}.jsonl").open("w", buffering=1)
        self.limit, self.step = limit, 0
        self.called: Set[str] = set()
        self.layers = {str(number): layer for number, layer in enumerate(model.wavlm.encoder.layers)}
        for name, layer in self.layers.items():
            layer.register_forward_hook(self._noting(name))
        model.register_forward_pre_hook(lambda module, arguments: self.called.clear())
        model.register_forward_hook(self._forward_ended)
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        self.write(pid=os.getpid(), layers=list(self.layers), versions=versions)

    def _noting(self, name: str) -> Callable[..., None]:
        return lambda module, arguments, output: self.called.add(name)

    def _forward_ended(self, model: Any, arguments: Any, output: Any) -> None:
        if model.training:
            self.step += 1
            skipped = [name for name in self.layers if name not in self.called]
            self.write(step=self.step, skipped=skipped, loss=output["loss"].item())
            faulthandler.dump_traceback_later(self.limit, exit=True)

    def compare(self, model: Any) -> None:
        """Whether every rank ends with the same parameters, to the last bit."""
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.detach().contiguous().numpy().tobytes())
        every = [None] * distributed.get_world_size()
        distributed.all_gather_object(every, digest.hexdigest())
        self.write(identical=len(set(every)) == 1)

    def write(self, **line: object) -> None:
        self.file.write(json.dumps({"rank": self.rank, **line}) + "\n")


def train(model: Any, data: Tones) -> None:
    distributed.init_process_group("gloo")
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=RATE)
    sampler = DistributedSampler(data, seed=7)
    for batch in DataLoader(data, BATCH, sampler=sampler, collate_fn=data.collate):
        loss = wrapped(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--limit", type=float, required=True, help="seconds after which a step counts as stuck")
    options = parser.parse_args()
    # Ranks get seeds of their own, as in many a recipe, so that dropout and augmentation differ between them.
    transformers.set_seed(7 + int(os.environ["RANK"]))
    model = wavlm().train()
    record = Record(options.folder, model, options.limit)
    train(model, Tones(options.steps * RANKS * BATCH))
    record.compare(model)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
