"""A process that imports torch once, with or without ddpfix, and forks the ranks of one program after the other."""

from __future__ import annotations

import contextlib
import datetime
import gc
import json
import os
import pickle
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Dict, List, NoReturn

import torch
import torch.distributed.optim
import torch.utils.data.distributed
from torch import distributed

from tests.harm.loops.kit import Kit
from tests.support import serving

# Seconds: what a collective waits, and what a rank that is done waits for the others.
COLLECTIVE, STAY = 10, 2.0
ABORTED = "the process was ended by a signal"


def serve() -> None:
    """Answer each request on standard input when its ranks have ended."""
    for line in sys.stdin:
        request = json.loads(line)
        ranks = [_fork(request, rank) for rank in range(request["ranks"])]
        print("done" if _wait(ranks, request["limit"]) else "killed", flush=True)


def _fork(request: Dict[str, Any], rank: int) -> int:
    child = os.fork()
    if child == 0:
        _become(request, rank)
    return child


def _wait(ranks: List[int], limit: float) -> bool:
    """Wait for the ranks; those that are not over at the limit print their stacks, and are killed: False then."""
    left, end = set(ranks), time.monotonic() + limit
    while left and time.monotonic() < end:
        left -= {rank for rank in left if os.waitpid(rank, os.WNOHANG) != (0, 0)}
        time.sleep(0.002)
    for number in (signal.SIGUSR1, signal.SIGKILL) if left else ():
        for rank in left:
            os.kill(rank, number)
        time.sleep(0.1)
    for rank in left:
        os.waitpid(rank, 0)
    return not left


def _become(request: Dict[str, Any], rank: int) -> NoReturn:
    """Be one rank in this (forked) process."""
    home = Path(request["file"]).parent
    stem = home / f"{request['name']}.{rank}"
    screen = os.open(f"{stem}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(screen, 1)
    os.dup2(screen, 2)
    serving.listen()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(request["ranks"]))
    os.environ.update(LOCAL_WORLD_SIZE=str(request["ranks"]), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(request["port"]))
    try:
        with contextlib.suppress(Exception):
            _train(request, rank, stem)
            _stay(request, home)
    finally:
        os._exit(0)


def _train(request: Dict[str, Any], rank: int, stem: Path) -> None:
    """Run the program in the ways asked for, one after the other in one group; an error ends them."""
    records: Dict[str, Any] = {}
    try:
        store = distributed.TCPStore("127.0.0.1", request["port"], None, False, datetime.timedelta(seconds=30))
        limit = datetime.timedelta(seconds=COLLECTIVE)
        store = distributed.PrefixStore(request["prefix"], store)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=request["ranks"], timeout=limit)
        train = runpy.run_path(request["file"])["train"]
        for mode in request["modes"]:
            kit = Kit(mode, request["seed"])
            # gloo may end the process.
            _save({**records, mode: {**kit.record, "error": ABORTED}}, stem)
            records[mode] = kit.record
            kit.run(train)
    except Exception:
        traceback.print_exc()
        raise
    finally:
        _save(records, stem)
        (stem.parent / f"{stem.name}.over").touch()


def _save(records: Dict[str, Any], stem: Path) -> None:
    part = stem.parent / f"{stem.name}.part"
    part.write_bytes(pickle.dumps(records))
    part.rename(stem.parent / f"{stem.name}.pickle")


def _stay(request: Dict[str, Any], home: Path) -> None:
    """Wait for the other ranks: one that ends early breaks connections that they still use."""
    end = time.monotonic() + STAY
    files = [home / f"{request['name']}.{rank}.over" for rank in range(request["ranks"])]
    while time.monotonic() < end and not all(file.exists() for file in files):
        time.sleep(0.002)


def _warm() -> None:
    """Have imported what an optimizer imports at its first step."""
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    for kind in (torch.optim.SGD, torch.optim.Adam):
        optimizer = kind([weight], lr=0.1)
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    torch.set_num_threads(1)
    serving.dynamo()

    if os.environ.get("DDPFIX"):
        from tests.support import undo

        # Once for all programs, before the fork: it takes longer than a program.
        serving.preload()
        undo.open_gate()
    print("ready", flush=True)
    _warm()
    # Pages that the collector does not touch stay shared with the children.
    gc.collect()
    gc.freeze()
    serve()


if __name__ == "__main__":
    main()
