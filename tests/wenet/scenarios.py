"""What one rank does in a scenario, on the tree on the path; what it finds is recorded."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Dict, Iterator, List

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tests.wenet import tiny_model

RANK = int(os.environ.get("RANK", "0"))
Record = Dict[str, Any]


def digest(model: torch.nn.Module) -> str:
    whole = hashlib.sha256()
    for parameter in model.parameters():
        whole.update(parameter.detach().numpy().tobytes())
    return whole.hexdigest()[:16]


@contextlib.contextmanager
def group() -> Iterator[None]:
    """A process group that is left to the end of the process: to destroy it while a model still has it can hang."""
    distributed.init_process_group("gloo")
    yield
    distributed.barrier()


def depth(plan: Dict[str, Any], record: Record) -> None:
    """Train a net with stochastic depth for some steps; note what ran, and the weights after each step.

    Plan: ``encoder``, ``rate``, ``branch``, ``steps``; ``moved``: rank 1's generator is used once more, as for a batch
    that it skipped; ``decisions``: what plain torch is to draw, instead of its numbers.
    """
    record.update(ran=[], weights=[])
    made = _spied() if plan.get("spied") else None
    with group(), _scripted(plan.get("decisions", {}).get(str(RANK))):
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
            record["weights"].append(digest(net))
    if made is not None:
        record["decisions"] = made


def _spied() -> Dict[str, List[bool]]:
    """Every decision that ddpfix takes from here on, in order, by how its number is drawn."""
    from ddpfix.layerdrop.call import Call

    kinds: Dict[str, List[bool]] = {"numbers": [], "vectors": []}
    decide = Call.decide

    def noting(self: Any, comparison: Any, truth: Any, rate: Any, layers: Any) -> Any:
        result = decide(self, comparison, truth, rate, layers)
        kinds["vectors" if layers else "numbers"].append(bool(result) == comparison.skip)
        return result

    Call.decide = noting  # type: ignore[method-assign]
    return kinds


@contextlib.contextmanager
def _scripted(decisions: Any) -> Iterator[None]:
    """Plain draws that make these decisions, and take the numbers of the original functions first."""
    if decisions is None:
        yield
        return
    numbers, vectors = list(decisions["numbers"]), list(decisions["vectors"])
    original_rand, original_uniform = torch.rand, torch.Tensor.uniform_

    def rand(*size: Any, **kwargs: Any) -> Any:
        value = original_rand(*size, **kwargs)
        return torch.tensor([0.0 if numbers.pop(0) else 0.99]) if size == (1,) else value

    def uniform_(self: Any, *args: Any, **kwargs: Any) -> Any:
        original_uniform(self, *args, **kwargs)
        # A list of layers draws at rate 0, too.
        if decisions["vectors"] and not args and self.dim() == 1:
            for index in range(len(self)):
                self[index] = 0.0 if vectors.pop(0) else 0.99
        return self

    torch.rand, torch.Tensor.uniform_ = rand, uniform_  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.rand, torch.Tensor.uniform_ = original_rand, original_uniform  # type: ignore[method-assign]
    assert not numbers and not vectors, (numbers, vectors)


def idle(plan: Dict[str, Any], record: Record) -> None:
    """Train a checkpointed model through the tree's own wrap_cuda_model.

    Plan: ``all_used``; ``by_hand``: DDP is built without it, with the flag and non-reentrant checkpoints; ``forced``:
    only the flag is edited in; ``checkpointing``: what the configuration has for the encoder, True by default.
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
            wrapped = _wrapped(model, plan.get("forced", False))
        record["flag"] = wrapped.find_unused_parameters
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            wrapped(tiny_model.batch(RANK, step), torch.device("cpu"))["loss"].backward()
            record["none"] = sorted({n.partition(".")[0] for n, p in model.named_parameters() if p.grad is None})
            optimizer.step()
            optimizer.zero_grad()
            record["weights"].append(digest(model))


def _wrapped(model: torch.nn.Module, forced: bool) -> Any:
    """3.0 and 3.1 insist on a GPU, for as long as this takes."""
    arguments = SimpleNamespace(train_engine="torch_ddp", fp16_grad_sync=False, device="cpu")
    original_init, original_cuda, there = (
        DistributedDataParallel.__init__,
        torch.nn.Module.cuda,
        torch.cuda.is_available,
    )

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        torch.cuda.is_available = there
        original_init(self, *args, **{**kwargs, **({"find_unused_parameters": True} if forced else {})})

    torch.cuda.is_available = lambda: True
    torch.nn.Module.cuda = lambda self, device=None: self  # type: ignore[method-assign]
    DistributedDataParallel.__init__ = init  # type: ignore[method-assign]
    try:
        return import_module("wenet.utils.train_utils").wrap_cuda_model(arguments, model)[0]
    finally:
        torch.nn.Module.cuda, torch.cuda.is_available = original_cuda, there  # type: ignore[method-assign]
        DistributedDataParallel.__init__ = original_init  # type: ignore[method-assign]


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

    owners: List[Any] = [import_module(name) for name in plan["modules"]]
    owners += [value for owner in list(owners) for value in vars(owner).values() if isinstance(value, type)]
    before = [dict(vars(owner)) for owner in owners]
    ddpfix.activate(**plan["arguments"])
    record["applied"] = sorted(p.id for p in ddpfix.report().patches if p.state == "applied" and p.toolkit == "wenet")
    record["failed"] = [p.id for p in ddpfix.report().patches if p.state == "failed"]
    record["changed"] = sum(_differ(vars(owner), was) for owner, was in zip(owners, before))
    record["problems"] = ddpfix.deactivate()
    record["left"] = sum(_differ(vars(owner), was) for owner, was in zip(owners, before))


def _differ(now: Any, was: Dict[str, Any]) -> bool:
    return now.keys() != was.keys() or any(now[name] is not value for name, value in was.items())


FUNCTIONS = {function.__name__: function for function in (depth, idle, flags, undone)}
