"""Ray Train: the driver, and the loop of its workers, which trains and records as the other programs do.

python by_ray.py FOLDER plain|prepared          # on one host
python by_ray.py FOLDER plain HEAD              # on the first one of two hosts, whose address this is
python by_ray.py FOLDER join HEAD OWN           # on the other one, until the first one has ended
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Dict, Iterator

STEPS = 6
PORT = 6379
ENDED = "ended"


def alone(folder: Path, how: str) -> None:
    """On one host."""
    import ray

    # Not a cluster that this machine may be in.
    ray.init(address="local", num_cpus=4, include_dashboard=False, runtime_env={"env_vars": given("DDPFIX")})
    fit(folder, how, "PACK")
    ray.shutdown()


def first(folder: Path, how: str, head: str) -> None:
    """On the first one of two hosts; a worker has the DDPFIX of its host."""
    import ray

    try:
        with host("--head", f"--port={PORT}", "--include-dashboard=false", own=head):
            wait(lambda: connected(f"{head}:{PORT}"))
            wait(lambda: sum(bool(node["Alive"]) for node in ray.nodes()) == 2)
            fit(folder, how, "STRICT_SPREAD")
            ray.shutdown()
    finally:
        (folder / ENDED).touch()


def join(folder: Path, head: str, own: str) -> None:
    """On the other one."""
    with host(f"--address={head}:{PORT}", own=own):
        wait(lambda: (folder / ENDED).exists(), limit=400)


def given(*more: str) -> Dict[str, str]:
    """Variables that reach all workers; others are those of their host."""
    return {name: value for name, value in os.environ.items() if name.startswith((*more, "TEST_", "PYTHONPATH"))}


def connected(address: str) -> bool:
    import ray

    try:
        ray.init(address=address, log_to_driver=True, runtime_env={"env_vars": given()})
    except ConnectionError:
        return False
    return True


def wait(done: Callable[[], bool], limit: float = 90) -> None:
    end = time.monotonic() + limit
    while not done():
        if time.monotonic() > end:
            raise RuntimeError(f"not within {limit} seconds")
        time.sleep(0.2)


@contextmanager
def host(*words: str, own: str) -> Iterator[None]:
    """A host of a cluster, while the body runs."""
    import psutil

    program = str(Path(sys.executable).parent / "ray")
    command = [program, "start", f"--node-ip-address={own}", "--num-cpus=4", "--disable-usage-stats", "--block", *words]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        # A host that is asked to end waits half a minute for work that there is none of.
        for each in (*psutil.Process(process.pid).children(recursive=True), process):
            each.kill()
        process.wait(60)


def fit(folder: Path, how: str, placement: str) -> None:
    """Start two workers, and wait for them.

    Args:
        folder: where they leave their records.
        how: plain (the program wraps its model), or prepared (``ray.train.torch.prepare_model`` does).
        placement: Ray's strategy for the two.
    """
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    trainer = TorchTrainer(
        loop,
        train_loop_config={"folder": str(folder), "how": how},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False, placement_strategy=placement),
        torch_config=TorchConfig(backend="gloo"),
        run_config=RunConfig(storage_path=str(folder / "storage")),
    )
    trainer.fit()


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
    place, what, *rest = sys.argv[1:]
    if what == "join":
        join(Path(place), *rest)
    elif rest:
        first(Path(place), what, *rest)
    else:
        alone(Path(place), what)
