"""What a program saves and copies while it trains, and what a training step reads on the host, by whom."""

from __future__ import annotations

import copy
import io
import pickle
import threading
import time
from typing import Any, Callable, Dict, List, Set

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.accelerator import models
from tests.late.parting import Record, batch, net, note, second_rank, wrapped
from tests.support import host_reads


class Whole(nn.Module):
    """A module that is saved with all of its attributes, those of torch's own included."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x)

    def __getstate__(self) -> Dict[str, Any]:
        return dict(self.__dict__)


def _by_torch(value: Any) -> bytes:
    kept = io.BytesIO()
    torch.save(value, kept)
    return kept.getvalue()


WAYS: Dict[str, Callable[[Any], bytes]] = {
    "torch": _by_torch,
    "pickle": pickle.dumps,
    "deepcopy": lambda value: pickle.dumps(copy.deepcopy(value)),
    "copy": lambda value: pickle.dumps(copy.copy(value)),
}


def _saved(value: Any) -> List[str]:
    """What came of each way: "" for bytes that hold nothing of ddpfix."""
    found = []
    for way, save in WAYS.items():
        try:
            held = save(value)
        except Exception as error:
            found.append(f"{way}: {error!r}")
        else:
            found.append("" if b"ddpfix" not in held and b"patches" not in held else f"{way}: holds ddpfix")
    return found


def _hooks(model: nn.Module) -> int:
    return sum(len(held) for part in model.modules() for name, held in vars(part).items() if name.endswith("_hooks"))


def trained(record: Record, whole: bool = False, noise: bool = False, flag: bool = False) -> None:
    """Train, also a module of :class:`Whole`, or one that ranks move apart, and save all that there is in each step."""
    model = wrapped(Whole() if whole else net(), find_unused_parameters=flag)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    record["saved"], record["steps"], record["hooks"], record["copies"] = [], [], [], []
    copies = []
    for step in range(8):
        optimizer.zero_grad()
        output = model(batch(step))
        loss = output.pow(2).mean()
        record["hooks"].append([len(each._backward_hooks or ()) for each in (output, loss, *model.parameters())])
        loss.backward()
        optimizer.step()
        if noise and second_rank():
            with torch.no_grad():
                model.module[0].weight.add_(0.1)
        record["saved"] += [*_saved(model.module), *_saved(optimizer), *_saved(output.detach())]
        record["saved"].append("" if b"ddpfix" not in _by_torch(model) else "the wrapper holds ddpfix")
        record["hooks"].append(_hooks(model))
        copies.append(copy.deepcopy(model.module))
        note(record, model)
    # A copy from any step is saved at the end of the run.
    record["copies"] = [_saved(each) for each in copies]


# Values that are read on the host in a training step, and calls of torch.cuda.


# Steps after which all is as in any later one: the replicas are compared after steps 1, 2, 4 and 8.
STEPS, USUAL = 24, 10


def train(record: Record, kind: str, begin: int = USUAL, **options: Any) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(models.MODELS[kind](), **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(100 + distributed.get_rank())
    for step in range(STEPS):
        if step == begin:
            counting = host_reads.counted()
            found = counting.__enter__()
        optimizer.zero_grad()
        models.loss(model(models.inputs(kind))).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    counting.__exit__(None, None, None)
    record["all"] = [[*key, times] for key, times in found.items()]
    record["ddpfix"] = [[*key, times] for key, times in host_reads.of_ddpfix(found).items()]


STUBBED = (
    *("synchronize", "current_device", "set_device", "empty_cache", "device_count", "memory_stats", "init"),
    *("_lazy_init", "current_stream", "default_stream", "get_rng_state_all", "max_memory_allocated"),
    *("memory_reserved", "mem_get_info", "get_device_properties", "is_current_stream_capturing", "Event", "Stream"),
)


def cuda_calls(record: Record, asks: bool = False) -> None:
    """Where torch.cuda is a stub that seems to be in use; with ``asks`` a thread of ddpfix's kind calls it, too."""
    from ddpfix import log
    from ddpfix.unlisted_thread import Background

    calls: Dict[str, Set[str]] = {"ours": set(), "programs": set()}

    def stub(name: str, value: Any) -> None:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls["ours" if threading.get_ident() in log.NOTED.unlisted else "programs"].add(name)
            return value

        setattr(torch.cuda, name, call)

    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for name in STUBBED:
        stub(name, False)
    stub("is_initialized", True)
    for step in range(20):
        model(torch.randn(4, 8)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        # The watch of hangs looks, and the trace is written.
        time.sleep(1.0 if step == 10 else 0.1)
    if asks:
        Background(lambda: torch.cuda.synchronize()).join(5)
    record.update({whose: sorted(names) for whose, names in calls.items()})
