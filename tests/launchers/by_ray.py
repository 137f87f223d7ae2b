"""Ray Train: the driver, and the loop of its workers, which trains and records as the other programs do."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Dict

STEPS = 6


def main(folder: Path, how: str) -> None:
    """Start two workers, and wait for them.

    Args:
        folder: where they leave their records.
        how: plain (the program wraps its model), or prepared (``ray.train.torch.prepare_model`` does).
    """
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    # Workers on other hosts have the environment of those; what is given here reaches all of them.
    own = ("DDPFIX", "TEST_", "PYTHONPATH")
    variables = {name: value for name, value in os.environ.items() if name.startswith(own)}
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=True, runtime_env={"env_vars": variables})
    trainer = TorchTrainer(
        loop,
        train_loop_config={"folder": str(folder), "how": how},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        torch_config=TorchConfig(backend="gloo"),
        run_config=RunConfig(storage_path=str(folder / "storage")),
    )
    trainer.fit()
    ray.shutdown()


def loop(config: Dict[str, Any]) -> None:
    """What each worker runs; Ray has made the process group."""
    from tests.launchers import program
    from tests.ranks import worker
    from tests.support import zoo

    if "ddpfix" in sys.modules:
        worker.note_answers()
    try:
        if config["how"] == "plain":
            record = worker.train(zoo.tiny_model("bart"), STEPS, bucket_cap_mb=1)
        else:
            record = prepared()
    except RuntimeError as error:
        record = {"error": str(error)}
    program.leave(Path(config["folder"]), record)
    if "error" in record:
        raise RuntimeError(record["error"])


def prepared() -> Dict[str, Any]:
    """Ray wraps the model, as its users do; there is no reference."""
    import torch
    from ray.train.torch import prepare_model

    from tests.ranks import worker
    from tests.support import zoo

    entry = zoo.tiny_model("bart")
    model = entry.build(seed=3)
    watch = worker.Watch(model)
    wrapped = prepare_model(model, move_to_device=False)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-2)
    record: Dict[str, Any] = {"skipped": [], "equal": [], "errors": []}
    for step in range(STEPS):
        optimizer.zero_grad()
        entry.loss(wrapped(**worker.batch(entry, step))).backward()
        optimizer.step()
        record["skipped"].append(watch.skipped())
        record["equal"].append(worker.same_everywhere(worker.flat(model)))
    return record


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
