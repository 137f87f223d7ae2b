"""A training script: ``python job.py OPTIONS.json``, or ``-m tests.fastnlp.job``; forked ranks call :func:`train`.

Started as a script it leaves its record in ``FOLDER/NAME.RANK.json``.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path
from typing import Any, Dict

if __name__ == "__main__":
    OPTIONS = json.loads(Path(sys.argv[1]).read_text())
    if OPTIONS.get("first"):
        exec(OPTIONS["first"])

import torch

from tests.fastnlp import models, releases
from tests.support import recorder


class Recorder(recorder.Recorder):
    """Notes more of what DDP was given."""

    def wrapped(self, model: Any) -> None:
        names = ("find_unused_parameters", "static_graph", "broadcast_buffers", "gradient_as_bucket_view")
        self.record["ddp"].append({name: getattr(model, name) for name in names})


def train(options: Dict[str, Any], record: Dict[str, Any]) -> None:
    """One training run; ``record`` fills up while it goes on."""
    record.update(places={}, error=None)
    model = models.make(options["model"])
    Recorder(record).attach()
    note_raised()
    fail_at(model, options.get("fail"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {
        name: eval(value) if str(value).startswith("eval ") else value for name, value in options["kwargs"].items()
    }
    before = json.dumps(given, default=str)
    names = {"options": options, "given": given, "model": model, "record": record, "optimizer": optimizer}
    exec(options.get("before") or "", names)
    run = with_driver if releases.has_drivers() else with_dist_trainer
    try:
        run(names["model"], optimizer, given, options)
        exec(options.get("after") or "")
    finally:
        record["given_stays"] = json.dumps(given, default=str) == before or bool(options.get("before"))
        record["places"] = places()


def places() -> Dict[str, Any]:
    """Which patches of ddpfix are in place in this process."""
    ours = sys.modules.get("ddpfix")
    entries = ours.report().patches if ours is not None else []
    return {entry.id: entry.state for entry in entries if entry.id.startswith(("fastnlp", "torch"))}


def failing(where: str, fail: Any) -> bool:
    return bool(fail) and fail["where"] == where and fail.get("rank", models.rank()) == models.rank()


def fail_at(model: torch.nn.Module, fail: Any) -> None:
    """Have the model's second training step, or its evaluation, fail on one rank."""
    if failing("train", fail):
        original, calls = model.forward, []

        def forward(x: torch.Tensor) -> Any:
            calls.append(1)
            if len(calls) == 2:
                exec(fail.get("how") or 'raise ValueError("bad sample")')
            return original(x)

        model.forward = forward
    elif failing("evaluate", fail):

        def evaluate_step(x: torch.Tensor) -> Any:
            raise ValueError("bad sample")

        model.evaluate_step = evaluate_step  # type: ignore[assignment]


def note_raised() -> None:
    """Print at once what DDP raises: two ranks that fail at the same time end each other before they record it."""
    kind: Any = torch.nn.parallel.DistributedDataParallel
    original = kind.forward

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except RuntimeError as error:
            os.write(2, f"{releases.RAISED}{' '.join(str(error).split())}\n".encode())
            raise

    kind.forward = forward


def with_driver(model: Any, optimizer: Any, given: Dict[str, Any], options: Dict[str, Any]) -> None:
    from fastNLP import Trainer
    from torch.utils.data import DataLoader

    whole = {"driver": "torch", "device": [0, 1], "n_epochs": 1, "progress_bar": None, **given}
    loader = DataLoader(models.samples(), batch_size=2)
    if options.get("evaluate"):
        whole.update(evaluate_dataloaders=DataLoader(models.samples(), batch_size=2), metrics={"acc": Count()})
    Trainer(model, loader, optimizer, **whole).run(num_eval_sanity_batch=0)


class Count:
    """The smallest of metrics."""

    def __new__(cls) -> Any:
        from fastNLP import Metric

        class Counted(Metric):  # type: ignore[misc]
            def update(self, pred: Any) -> None:
                pass

            def get_metric(self) -> Dict[str, float]:
                return {"count": 0.0}

            def reset(self) -> None:
                pass

        return Counted()


def with_dist_trainer(model: Any, optimizer: Any, given: Dict[str, Any], options: Dict[str, Any]) -> None:
    from fastNLP import DataSet
    from fastNLP.core.dist_trainer import DistTrainer
    from packaging.version import Version

    data = DataSet({"x": [sample["x"].tolist() for sample in models.samples()]})
    data.set_input("x")
    whole = {"n_epochs": 1, "batch_size_per_gpu": 2, "num_workers": 0, "device": "cpu", "use_tqdm": False, **given}
    if releases.release() >= Version("0.5.5"):
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo")
    else:
        whole.update(backend="gloo", init_method="env://")
    DistTrainer(data, model, optimizer, **whole).train()


def main() -> None:
    from tests.fastnlp import stand_in

    stand_in.apply()
    record: Dict[str, Any] = {}
    try:
        train(OPTIONS, record)
    finally:
        file = Path(OPTIONS["folder"]) / f"{OPTIONS['name']}.{os.environ.get('RANK', '0')}.json"
        file.write_text(json.dumps(record))
    # fastNLP leaves the group as it is. Now and then gloo's threads then end the process with SIGABRT, also
    # without ddpfix.
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
