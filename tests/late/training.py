"""Trains a case under DDP beside the same model without DDP, whose gradients are averaged by hand."""

from __future__ import annotations

import contextlib
import datetime
from typing import Any, Dict

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tests.late.cases import CASES, Case


def run(scenario: Dict[str, Any]) -> None:
    """Fill ``record``: how far gradients and parameters are from the reference, at most."""
    record = scenario["found"]
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=15))
    torch.manual_seed(3)
    case = CASES[scenario["case"]]()
    inner, reference = case.model(), case.model()
    # A copy would lack the hooks on parameters.
    reference.load_state_dict(inner.state_dict())
    model = DistributedDataParallel(prepared(case, inner), **{**case.ddp, **scenario["ddp"]})
    if scenario["hook"]:
        register(model, scenario["hook"])
    record.update(
        flag=model.find_unused_parameters, static=model.static_graph, gradients=0.0, parameters=0.0, none=0, steps=0
    )
    train(case, model, reference, scenario, record)
    record.update(apart=apart_from_others(model))


def prepared(case: Case, inner: Any) -> Any:
    return case.prepared(inner) if hasattr(case, "prepared") else inner


def register(model: Any, name: str) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if name == "powerSGD_hook":
        model.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
    else:
        model.register_comm_hook(None, getattr(default_hooks, name))


def train(case: Case, model: Any, reference: Any, scenario: Dict[str, Any], record: Dict[str, Any]) -> None:
    rank, size = distributed.get_rank(), distributed.get_world_size()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (model, reference)]
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0) if case.scale and scales() else None
    for step in range(scenario["steps"]):
        for each, optimizer in zip((model, reference), optimizers):
            optimizer.zero_grad()
            case.between(each, step)
            scale = scaler.scale if scaler is not None and each is model else (lambda loss: loss)
            for index in range(case.accum):
                last = index == case.accum - 1
                with contextlib.nullcontext() if last or each is reference else model.no_sync():
                    case.run(each, rank, step * case.accum + index, scale)
        average(reference, size)
        if scaler is not None:
            scaler.unscale_(optimizers[0])
        if case.clip:
            for each in (model, reference):
                torch.nn.utils.clip_grad_norm_(each.parameters(), case.clip)
        if scaler is None:
            optimizers[0].step()
        else:
            scaler.step(optimizers[0])
            scaler.update()
        compare(model, reference, record)
        optimizers[1].step()
        for one, other in zip(model.parameters(), reference.parameters()):
            record["parameters"] = max(record["parameters"], float((one - other).detach().abs().max()))
        record["steps"] += 1


def scales() -> bool:
    """Whether this torch can scale losses on a CPU."""
    return hasattr(torch.amp, "GradScaler")


def average(reference: Any, size: int) -> None:
    """The mean over ranks of local gradients; a rank without one adds nothing, and nothing is added to no gradient."""
    for parameter in reference.parameters():
        used = torch.tensor(float(parameter.grad is not None))
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad / size
        distributed.all_reduce(gradient)
        distributed.all_reduce(used)
        parameter.grad = gradient if parameter.requires_grad and used else None


def compare(model: Any, reference: Any, record: Dict[str, Any]) -> None:
    """Called after the optimizer's step of the model, which is when everything is closed."""
    for one, other in zip(model.parameters(), reference.parameters()):
        if one.grad is None:
            record["none"] += other.grad is not None
            continue
        assert one.requires_grad, "a frozen parameter has got a gradient"
        zero = torch.zeros_like(one) if other.grad is None else other.grad
        record["gradients"] = max(record["gradients"], float((one.grad - zero).abs().max()))


def apart_from_others(model: Any) -> float:
    """How far this rank's parameters are from rank 0's."""
    far = 0.0
    for parameter in model.parameters():
        first = parameter.detach().clone()
        distributed.broadcast(first, 0)
        far = max(far, float((first - parameter.detach()).abs().max()))
    return far
