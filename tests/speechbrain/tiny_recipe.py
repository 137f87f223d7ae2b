"""The smallest of recipes: one layer, trained by an ordinary Brain; what happens in it stands in the yaml.

Which batches a rank has, what goes wrong on which rank, and what the end of a stage decides. Run as a script.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Iterator, List

import torch

SCRIPT = Path(__file__)
YAML = """
output_folder: results
kind: loader
counts: "3,3"
number_of_epochs: 1
lr: 0.1
momentum: 0.0
failing: ""
nan: ""
apart: 0.0
alone: False
anneal: 0.0
keep: True
main: ""
stop_at: 0
past: ""
__set_seed: !apply:torch.manual_seed [7]
modules:
    model: !new:torch.nn.Linear
        in_features: 4
        out_features: 1
model: !ref <modules[model]>
epoch_counter: !new:speechbrain.utils.epoch_loop.EpochCounter
    limit: !ref <number_of_epochs>
train_logger: !new:speechbrain.utils.train_logger.FileTrainLogger
    save_file: !ref <output_folder>/train_log.txt
lr_annealing: !new:speechbrain.nnet.schedulers.NewBobScheduler
    initial_value: !ref <lr>
    annealing_factor: !ref <anneal>
    improvement_threshold: 1.0
checkpointer: !new:speechbrain.utils.checkpoints.Checkpointer
    checkpoints_dir: !ref <output_folder>/save
    recoverables:
        model: !ref <modules[model]>
        counter: !ref <epoch_counter>
        scheduler: !ref <lr_annealing>
"""
# The same with a frozen module made at random, and statistics of the input.
FROZEN = YAML.replace(
    "modules:\n",
    """modules:
    target: !new:torch.nn.Linear
        in_features: 4
        out_features: 4
    normalize: !new:speechbrain.processing.features.InputNormalization
        norm_type: !ref <norm_type>
""",
).replace("apart: 0.0\n", "apart: 0.0\nnorm_type: global\n")


def row(index: int) -> torch.Tensor:
    """An input; each one differs from all others."""
    return torch.randn(4, generator=torch.Generator().manual_seed(1000 + index))


class Batch:
    """One input a batch, named by its number; rank 1 begins at 100."""

    def __init__(self, indices: List[int]) -> None:
        self.id = [str(index) for index in indices]
        self.x = torch.stack([row(index) for index in indices])

    def to(self, device: Any) -> Batch:
        return self


class Shares(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """What a rank reads, without a length; ``once`` gives nothing the second time."""

    def __init__(self, indices: List[int], once: bool) -> None:
        self.indices = indices
        self.once = once
        self.readings = 0

    def __iter__(self) -> Iterator[int]:
        self.readings += 1
        return iter([] if self.once and self.readings > 1 else self.indices)


def loader(kind: str, count: int, rank: int) -> Any:
    """This rank's training data: a loader with a length (``loader``), or without one."""
    indices = [100 * rank + number for number in range(count)]
    data: Any = indices if kind == "loader" else Shares(indices, kind == "once")
    return torch.utils.data.DataLoader(data, batch_size=1, collate_fn=Batch)


def due(text: str, rank: int, step: int) -> bool:
    """Whether "rank:step,..." names this rank and step."""
    return f"{rank}:{step}" in text.split(",")


def main() -> None:
    import speechbrain as sb
    from hyperpyyaml import load_hyperpyyaml
    from speechbrain.utils.distributed import if_main_process

    hparams_file, run_opts, overrides = sb.parse_arguments(sys.argv[1:])
    sb.utils.distributed.ddp_init_group(run_opts)
    with open(hparams_file) as file:
        hparams = load_hyperpyyaml(file, overrides)
    rank = int(os.environ["RANK"])
    folder = Path(hparams["output_folder"])
    folder.mkdir(parents=True, exist_ok=True)

    class TinyBrain(sb.Brain):  # type: ignore[misc,name-defined]
        def compute_forward(self, batch: Any, stage: Any) -> Any:
            if stage == sb.Stage.TRAIN and due(hparams["failing"], rank, self.step):
                raise MemoryError("out of memory")
            x = self.modules.target(batch.x) if "target" in self.modules else batch.x
            # Recipes up to 1.1.0 take the bare module, which is not the wrapped one.
            return (self.hparams if hparams["past"] == "all" else self.modules).model(x)

        def compute_objectives(self, predictions: Any, batch: Any, stage: Any) -> Any:
            loss = predictions.square().mean()
            bad = stage == sb.Stage.TRAIN and due(hparams["nan"], rank, self.step)
            return loss * float("nan") if bad else loss

        def fit_batch(self, batch: Any) -> Any:
            try:
                loss = super().fit_batch(batch)
            except MemoryError:
                return torch.tensor(0.0)
            if hparams["alone"] and if_main_process():
                hparams["train_logger"].log_stats({"step": self.step}, {"loss": loss})
            return loss

        def on_stage_end(self, stage: Any, stage_loss: Any, epoch: Any = None) -> None:
            if stage == sb.Stage.VALID:
                with open(folder / f"ends{rank}", "a") as ends:
                    ends.write(f"{epoch}\n")
                old, new = self.hparams.lr_annealing(float(stage_loss))
                if hparams["anneal"]:
                    sb.nnet.schedulers.update_learning_rate(self.optimizer, new)
                if epoch == hparams["stop_at"]:
                    self.hparams.epoch_counter.current = self.hparams.epoch_counter.limit
                hparams["train_logger"].log_stats({"epoch": epoch}, valid_stats={"loss": stage_loss})
                if hparams["keep"]:
                    self.save(hparams["main"], meta={"loss": float(stage_loss)}, min_keys=["loss"])

        def save(self, main: str, **kept: Any) -> None:
            """Save a checkpoint on every rank, or by one of the ways to do it on the main process only."""
            if main == "run_on_main":
                sb.utils.distributed.run_on_main(self.checkpointer.save_and_keep_only, kwargs=kept)
            elif main == "main_process_only":
                sb.utils.distributed.main_process_only(self.checkpointer.save_and_keep_only)(**kept)
            else:
                self.checkpointer.save_and_keep_only(**kept)

    def optimizer(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=hparams["lr"], momentum=hparams["momentum"])

    if "target" in hparams["modules"]:
        hparams["modules"]["target"].requires_grad_(False).bias += rank * hparams["apart"]
    brain = TinyBrain(
        modules=hparams["modules"],
        opt_class=optimizer,
        run_opts=run_opts,
        checkpointer=hparams["checkpointer"],
        hparams=hparams,
    )
    counts = [int(count) for count in str(hparams["counts"]).split(",")]
    valid = loader("loader", 2, 0)
    training = loader(hparams["kind"], counts[rank], rank)
    brain.fit(hparams["epoch_counter"], training, valid, train_loader_kwargs={"batch_size": 1, "collate_fn": Batch})
    weights = {name.replace("module.", ""): p.detach() for name, p in brain.modules.model.named_parameters()}
    if "target" in brain.modules:
        weights["target"] = torch.cat([p.flatten() for p in brain.modules.target.parameters()])
    torch.save({**weights, "current": hparams["epoch_counter"].current}, folder / f"end{rank}.pt")


if __name__ == "__main__":
    main()
