"""One rank, under torch elastic: trains a tiny model with the trace and without it, and notes what happened by itself.

At last both ranks are killed in the middle of a training.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import ddpfix

RANK = int(os.environ["RANK"])
FOLDER = Path(sys.argv[1])
STEPS, MICRO, WIDTH = 6, 2, 4
# In this step rank 1 comes late, and in this one reading takes long.
LATE, READ, PAUSE = 3, 5, 0.4


class Sentences(Dataset[Tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        length = 2 + index % 3
        return torch.randn(5, WIDTH, generator=generator), torch.tensor([1] * length + [0] * (5 - length))


class Branches(nn.Module):
    """Four branches, of which a forward leaves some out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.branches = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, values: torch.Tensor, attention_mask: torch.Tensor, used: List[int]) -> torch.Tensor:
        out = self.first(values) * attention_mask[..., None]
        for index in used:
            out = torch.tanh(self.branches[index](out))
        return out.pow(2).mean()


def used(step: int) -> List[int]:
    return [index for index in range(4) if index in (0, step % 4)]


def train(steps: int, before: Any = None) -> Dict[str, Any]:
    torch.manual_seed(7)
    wrapped = DistributedDataParallel(Branches())
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    data = Sentences(steps * MICRO * 2 * 2)
    sampler: Any = DistributedSampler(data, shuffle=True)
    sampler.set_epoch(3)
    loader = DataLoader(data, 2, sampler=sampler, num_workers=1 if before is None else 0)
    pickle.loads(pickle.dumps(loader))
    notes: List[Dict[str, Any]] = []
    batches = iter(loader)
    began = time.perf_counter()
    for step in range(1, steps + 1):
        note: Dict[str, Any] = {"loss": []}
        for micro in range(MICRO):
            if step == READ and micro == 0 and before is None:
                slow(batches)
            values, mask = next(batches)
            if step == LATE and micro == 1 and RANK == 1:
                time.sleep(PAUSE)
            wrapped.require_backward_grad_sync = micro == MICRO - 1
            loss = wrapped(values, attention_mask=mask, used=used(step)) / MICRO
            loss.backward()
            note["loss"].append(loss.item())
            note["shape"] = list(values.shape)
        note["unused"] = [
            name for name, _ in wrapped.module.named_parameters() if not name.startswith("first")
            and int(name.split(".")[1]) not in used(step)
        ]  # fmt: skip
        torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        now = time.perf_counter()
        note["seconds"], began = now - began, now
        notes.append(note)
        if before is not None:
            before(step)
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in wrapped.parameters())).hexdigest()
    return {"steps": notes, "digest": digest}


def slow(batches: Any) -> None:
    """The next batch comes late, as from a slow disk."""
    original = batches._next_data

    def late() -> Any:
        del batches._next_data
        time.sleep(PAUSE)
        return original()

    batches._next_data = late


def _is_of_trace(module: str) -> bool:
    parts = module.split(".")
    return parts[0] == "ddpfix" and not {"trace", "tracing"}.isdisjoint(parts)


def run(trace: Optional[Path]) -> Dict[str, Any]:
    if trace is None:
        ddpfix.activate(log="warning")
    else:
        ddpfix.activate(log="warning", trace=trace)
    found = train(STEPS)
    # Threads of a queue of the loader end by themselves, a moment later.
    found["threads"] = [each.name for each in threading.enumerate() if each.name != "QueueFeederThread"]
    found["problems"] = ddpfix.deactivate()
    found["loaded"] = sorted(name for name in sys.modules if _is_of_trace(name))
    return found


def held() -> List[Any]:
    from torch.optim import optimizer
    from torch.utils.data import dataloader

    return [
        torch.autograd.backward,
        vars(dataloader._BaseDataLoaderIter)["__next__"],
        len(optimizer._global_optimizer_pre_hooks) + len(optimizer._global_optimizer_post_hooks),
    ]


def main() -> None:
    distributed.init_process_group("gloo")
    before = held()
    found: Dict[str, Any] = {"off": run(None), "rows": run(FOLDER / "rows")}
    # What cannot be a folder, and one that vanishes.
    (FOLDER / f"file-{RANK}").write_text("")
    found["refused"] = run(FOLDER / f"file-{RANK}" / "inside")
    found["same"] = all(one is other or one == other for one, other in zip(before, held()))
    from ddpfix import log

    found["listeners"] = len(log.NOTED.listeners)
    (FOLDER / f"found-{RANK}.json").write_text(json.dumps(found))

    def die(step: int) -> None:
        distributed.barrier()
        if step == 4:
            # The rows so far come into the file; the next one need not.
            time.sleep(3.5)
        if step == 5:
            os.kill(os.getpid(), signal.SIGKILL)

    ddpfix.activate(log="warning", trace=FOLDER / "killed")
    train(8, die)


if __name__ == "__main__":
    main()
