"""What one rank does in a scenario, on the tree on the path; what it finds is recorded."""

from __future__ import annotations

import argparse
import contextlib
import os
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Dict, Iterator
from unittest import mock

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tests.support import undo
from tests.support.recorder import digest
from tests.wenet import tiny_model

RANK = int(os.environ.get("RANK", "0"))
Record = Dict[str, Any]


@contextlib.contextmanager
def group() -> Iterator[None]:
    """A process group that is left to the end of the process: to destroy it while a model still has it can hang."""
    distributed.init_process_group("gloo")
    yield
    distributed.barrier()


def depth(plan: Dict[str, Any], record: Record) -> None:
    """Train a net with stochastic depth for some steps; note what ran, and the weights after each step.

    Plan: ``encoder``, ``rate``, ``branch``, ``steps``; ``moved``: rank 1's generator is used once more, as for a batch
    that it skipped.
    """
    record.update(ran=[], weights=[])
    with group():
        net = tiny_model.deep(plan["encoder"], plan["rate"], plan.get("branch"))
        model = DistributedDataParallel(net, find_unused_parameters=True)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        torch.manual_seed(777)
        for step in range(plan["steps"]):
            if plan.get("moved") and RANK == 1 and step == 1:
                torch.rand(3)
            net.ran = []
            loss = model(*tiny_model.features(RANK, step))
            record["ran"].append(list(net.ran))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            record["weights"].append(digest(net.parameters()))


def idle(plan: Dict[str, Any], record: Record) -> None:
    """Train a checkpointed model through the tree's own wrap_cuda_model.

    Plan: ``all_used``; ``by_hand``: DDP is built without it, with the flag and non-reentrant checkpoints;
    ``checkpointing``: what the configuration has for the encoder, True by default.
    """
    record.update(weights=[], none=[])
    with group():
        model: Any = tiny_model.idle(plan["all_used"])
        if not plan.get("checkpointing", True):
            model.encoder.gradient_checkpointing = False
        if plan.get("by_hand"):
            original = torch.utils.checkpoint.checkpoint
            torch.utils.checkpoint.checkpoint = lambda *args, **kwargs: original(
                *args, **{**kwargs, "use_reentrant": False}
            )
            wrapped = DistributedDataParallel(model, find_unused_parameters=True)
        else:
            wrapped = _wrapped(model)
        record["flag"] = wrapped.find_unused_parameters
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            wrapped(tiny_model.batch(RANK, step), torch.device("cpu"))["loss"].backward()
            record["none"] = sorted({n.partition(".")[0] for n, p in model.named_parameters() if p.grad is None})
            optimizer.step()
            optimizer.zero_grad()
            record["weights"].append(digest(model.parameters()))


def _wrapped(model: torch.nn.Module) -> Any:
    """3.0 and 3.1 insist on a GPU, for as long as this takes."""
    arguments = SimpleNamespace(train_engine="torch_ddp", fp16_grad_sync=False, device="cpu")
    original, there = DistributedDataParallel.__init__, torch.cuda.is_available

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        with mock.patch("torch.cuda.is_available", there):
            original(self, *args, **kwargs)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch("torch.cuda.is_available", lambda: True))
        stack.enter_context(mock.patch.object(torch.nn.Module, "cuda", lambda self, device=None: self))
        stack.enter_context(mock.patch.object(DistributedDataParallel, "__init__", init))
        return import_module("wenet.utils.train_utils").wrap_cuda_model(arguments, model)[0]


def flags(plan: Dict[str, Any], record: Record) -> None:
    """What the options with True and False make of words; "error" for a word that the parser refuses."""
    utils = import_module("wenet.utils.train_utils")
    for word in plan["words"]:
        parser = utils.add_fsdp_args(utils.add_lora_args(argparse.ArgumentParser()))
        try:
            given = parser.parse_args(["--use_lora", word, "--fsdp_sync_module_states", word])
            record[word] = [given.use_lora, given.fsdp_sync_module_states, given.lora_rank]
        except SystemExit:
            record[word] = "error"


def undone(plan: Dict[str, Any], record: Record) -> None:
    """Whether everything is what it was after ddpfix was switched on and off again, and something else in between."""
    import ddpfix

    undo.imported(plan["modules"])
    before = undo.snapshot("wenet")
    ddpfix.activate(**plan["arguments"])
    record["applied"] = sorted(p.id for p in ddpfix.report().patches if p.state == "applied" and p.toolkit == "wenet")
    record["failed"] = [p.id for p in ddpfix.report().patches if p.state == "failed"]
    record["changed"] = _differing(before, undo.snapshot("wenet"))
    record["problems"] = ddpfix.deactivate()
    record["left"] = _differing(before, undo.snapshot("wenet"))


def _differing(before: Dict[undo.Key, Any], now: Dict[undo.Key, Any]) -> int:
    return sum(before.get(key) is not now.get(key) for key in {**before, **now})


FUNCTIONS = {function.__name__: function for function in (depth, idle, flags, undone)}
