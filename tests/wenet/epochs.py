"""What WeNet's train.py does around its Executor, with a tiny model and batches that a scenario describes."""

from __future__ import annotations

import contextlib
import datetime
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Optional, Union

import torch
from torch import distributed

from tests.support import serving
from tests.support.recorder import digest
from tests.wenet.uneven_tiny_model import Batches, Piped, Tiny, era


def load() -> None:
    """Import the Executor of the tree on the path; what newer torch and torchaudio lost is supplied."""
    import torch.nn.modules.conv

    for name, value in (("Union", Union), ("Optional", Optional)):
        vars(torch.nn.modules.conv).setdefault(name, value)
    if find_spec("torchaudio") is not None:
        sox = import_module("torchaudio.utils")
        vars(sox).setdefault("sox_utils", SimpleNamespace(set_buffer_size=lambda size: None))
    import_module("wenet.utils.executor")


def executor() -> Any:
    return import_module("wenet.utils.executor").Executor


def patched() -> Dict[str, Any]:
    """What the fixes for uneven data change, as it is now."""
    home = import_module("wenet.utils.executor")
    functions = {"train": vars(home.Executor)["train"], "cv": vars(home.Executor)["cv"]}
    if hasattr(home, "wenet_join"):
        functions["wenet_join"] = home.wenet_join
        functions["train_utils.wenet_join"] = import_module("wenet.utils.train_utils").wenet_join
    return functions


def loader(scenario: Dict[str, Any]) -> Any:
    """This rank's training batches: numbered from 100 times its rank."""
    fails = scenario["fail"] or {}
    own = fails if fails.get("rank") == serving.RANK else None
    data = Batches(100 * serving.RANK, scenario["counts"][serving.RANK], scenario["empty"], own)
    if not scenario["workers"]:
        return data

    return torch.utils.data.DataLoader(Piped(data), batch_size=None, num_workers=1, persistent_workers=True)


def scenario(plan: Dict[str, Any], folder: Path) -> None:
    """Run a scenario in this (forked) process."""
    if plan["settings"] is None:
        run(plan, folder / plan["name"])
        return
    import ddpfix
    from ddpfix.monitor import watch

    original = patched()
    ddpfix.activate(**plan["settings"])
    watch.PERIOD = 0.2
    plan["found"].update(changed=[name for name, raw in patched().items() if raw is not original[name]])
    run(plan, folder / plan["name"])
    plan["found"].update(problems=ddpfix.deactivate())
    plan["found"].update(left=[name for name, raw in patched().items() if raw is not original[name]])


def run(scenario: Dict[str, Any], folder: Path) -> None:
    """Train as a scenario (see :mod:`tests.wenet.uneven_runs`) says; fills its record."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    # Beyond the scenario's own limit: a rank that waits is to be seen as one that hangs.
    distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    tiny = Tiny()
    record = scenario["found"]
    record.update(trained=tiny.trained, steps=[], lr=[], seconds=[])
    model = wrapped(tiny, scenario["engine"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scheduler = import_module("wenet.utils.scheduler").WarmupLR(optimizer, warmup_steps=4)
    optimizer.register_step_post_hook(lambda *_: stepped(record, model, optimizer))
    doer, data = executor()(), loader(scenario)
    count_agreements(record)
    try:
        for epoch in range(scenario["epochs"]):
            begun = time.monotonic()
            train(doer, scenario, data, epoch, folder, model, optimizer, scheduler)
            record["seconds"].append(time.monotonic() - begun)
            record["lr_after"] = optimizer.param_groups[0]["lr"]
            validate(doer, scenario, model)
    except Exception:
        time.sleep(scenario["alive"])
        raise
    finally:
        record["executor_step"] = doer.step
        record["joins"] = "join" in vars(model)
    note_weights(record, model)
    distributed.barrier()


def count_agreements(record: Dict[str, Any]) -> None:
    """``agreed``: how many collectives the CPU has in training; DDP's own ones are not seen from here."""
    original, record["agreed"] = distributed.all_reduce, 0

    def all_reduce(*args: Any, **kwargs: Any) -> Any:
        record["agreed"] += "group" in kwargs and kwargs.get("async_op", False)
        return original(*args, **kwargs)

    distributed.all_reduce = all_reduce


def note_weights(record: Dict[str, Any], model: Any) -> None:
    """``weights``, which are to be equal on all ranks, and ``statistics`` of BatchNorm, which rank 0's are saved of."""
    shards = not isinstance(model, torch.nn.parallel.DistributedDataParallel)
    with type(model).summon_full_params(model) if shards else contextlib.nullcontext():
        record["weights"] = {name: value.flatten().tolist() for name, value in model.module.named_parameters()}
    record["statistics"] = {name: value.flatten().tolist() for name, value in model.module.named_buffers()}


def wrapped(tiny: Tiny, engine: str) -> Any:
    if engine == "torch_ddp":
        return torch.nn.parallel.DistributedDataParallel(tiny, find_unused_parameters=True)
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(tiny, use_orig_params=True, device_id=torch.device("cpu"))


def stepped(record: Dict[str, Any], model: Any, optimizer: Any) -> None:
    record["steps"].append(digest(model.parameters()))
    record["lr"].append(optimizer.param_groups[0]["lr"])


def configs(scenario: Dict[str, Any], epoch: int, folder: Path) -> Dict[str, Any]:
    own = {"accum_grad": scenario["accum"], "grad_clip": 50.0, "log_interval": 1000, "epoch": epoch}
    if era() < 3:
        return {**own, "rank": serving.RANK, "is_distributed": True, "use_amp": False}
    own.update(train_engine=scenario["engine"], model_dir=str(folder), save_states="model_only", dtype="fp32")
    return {**own, "save_interval": scenario["save_interval"]} if scenario["save_interval"] else own


def train(doer: Any, scenario: Dict[str, Any], data: Any, epoch: int, folder: Path, *trained: Any) -> None:
    conf = configs(scenario, epoch, folder)
    if era() < 3:
        doer.train(*trained, data, torch.device("cpu"), None, conf, None)
        return
    distributed.barrier()
    group = distributed.new_group(backend="gloo", timeout=datetime.timedelta(seconds=1))
    doer.train(*trained, data, validation(scenario), None, conf, None, group)
    distributed.destroy_process_group(group)
    distributed.barrier()


def validation(scenario: Dict[str, Any]) -> Batches:
    return Batches(1000, scenario["cv"][serving.RANK])


def validate(doer: Any, scenario: Dict[str, Any], model: Any) -> None:
    if scenario["engine"] != "torch_ddp":
        return
    conf = configs(scenario, 0, Path())
    if era() < 3:
        scenario["found"]["cv"] = list(doer.cv(model, validation(scenario), torch.device("cpu"), conf))
    else:
        scenario["found"]["cv"] = [doer.cv(model, validation(scenario), conf)["loss"]]
