"""Trains a sharded model beside the same model whole, made of the layers that ran, with gradients averaged by hand."""

from __future__ import annotations

import importlib
import inspect
from typing import Any, Dict, List

import torch
from torch import distributed, nn
from torch.utils.checkpoint import checkpoint

from tests.sharded import wraps
from tests.support import zoo

OPTIMIZERS: Dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    # Not the usual epsilon: it would make much of gradients that are next to nothing.
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, eps=1e-3),
}


def run(found: Dict[str, Any], plans: List[Dict[str, Any]]) -> None:
    """Fill ``record``: by plan and step, the layers that ran, what was sent, and how far all is from the reference."""
    sent = wraps.Sent()
    for plan in plans:
        record: Dict[str, Any] = {}
        found[plan["name"]] = record
        if plan["model"]:
            Run(plan, record, sent).steps()
        else:
            for entry in asking():
                record[entry.name] = {}
                Run({**plan, "model": entry.name}, record[entry.name], sent).steps()


def asking() -> List[zoo.TinyModel]:
    """The entries of the zoo that run every layer when they are sharded.

    Their adapters do not ask, and a forward without adapter layers is not what the reference here can do.
    """
    entries = []
    for entry in zoo.ZOO:
        if entry.available() and entry.survives() and not entry.name.endswith("-adapter") and not copied(entry.name):
            module = importlib.import_module(entry.module())
            forwards = [inspect.unwrap(vars(getattr(module, name))["forward"]) for name in entry.drawing()]
            if all("is_fsdp_managed_module" in forward.__code__.co_names for forward in forwards):
                entries.append(entry)
    return entries


def copied(name: str) -> bool:
    """Whether a family's second encoder is the one of wav2vec2 under another name."""
    return name.endswith("-stable") and not name.startswith(("wav2vec2", "wavlm"))


class Run:
    """One sharded model and its reference."""

    def __init__(self, plan: Dict[str, Any], record: Dict[str, Any], sent: wraps.Sent) -> None:
        self.plan, self.record, self.sent = plan, record, sent
        self.entry = zoo.tiny_model(plan["model"])
        self.alone = self.entry.build(rate=0.0, seed=3)
        inner = self.entry.build(rate=plan["rate"], seed=3)
        self.names = [name for name, _ in wraps.layers_of(inner)]
        self.called: List[str] = []
        for name, layer in wraps.layers_of(inner):
            layer.register_forward_hook(lambda *_, name=name: self.called.append(name))
        checkpointed(inner, plan["checkpointing"])
        self.reduced = wraps.reduced(plan["kind"])
        self.model = wraps.KINDS[plan["kind"]](inner)
        make = OPTIMIZERS[plan["optimizer"]]
        self.optimizers = [make(self.model.parameters()), make(self.alone.parameters())]
        torch.manual_seed(50 + distributed.get_rank())
        lists = ("ran", "again", "gathers", "reduces", "loss", "expected", "apart", "gradients", "none", "evaluated")
        self.record.update({name: [] for name in lists}, layers=self.names)
        self.record["reduced"] = self.reduced

    def steps(self) -> None:
        for step in range(self.plan["steps"]):
            if self.plan["evaluated"]:
                self.evaluate(step)
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            for index in range(self.plan["accum"]):
                with wraps.micro_batch(self.model, index == self.plan["accum"] - 1):
                    self.micro_batch(step * self.plan["accum"] + index)
            self.average(step)
            self.divide()
            self.look_at_gradients()
            for optimizer in self.optimizers:
                optimizer.step()
            self.record["apart"].append(self.apart())
            self.follow()
        self.record["decided"] = wraps.decided(self.model)

    def evaluate(self, number: int) -> None:
        """How many layers run, and how often something is gathered."""
        self.called.clear()
        self.sent.take()
        self.model.eval()
        with torch.no_grad():
            self.model(**self.entry.batch(number))
        self.model.train()
        self.record["evaluated"].append([len(self.called), len(self.sent.take()[0])])
        # The root stays gathered after a forward without backward.
        self.model.reshard()  # type: ignore[operator]

    def micro_batch(self, number: int) -> None:
        # What one rank draws by itself is not what the other draws.
        torch.rand(1 + 3 * distributed.get_rank())
        inputs = self.entry.batch(1000 * distributed.get_rank() + number)
        self.called.clear()
        self.sent.take()
        loss = self.entry.loss(self.model(**inputs)) / self.plan["accum"]
        ran = list(self.called)
        self.called.clear()
        loss.backward()
        gathers, reduces = self.sent.take()
        expected = self.reference(inputs, ran)
        again = list(dict.fromkeys(reversed(self.called)))
        record = {"ran": ran, "again": sorted(again), "gathers": gathers, "reduces": reduces}
        for name, value in {**record, "loss": float(loss.detach()), "expected": expected}.items():
            self.record[name].append(value)

    def reference(self, inputs: Dict[str, Any], ran: List[str]) -> float:
        """The same micro-batch by hand: a model that has the layers that ran, and no others."""
        with wraps.only(self.alone, ran):
            loss = self.entry.loss(self.alone(**inputs)) / self.plan["accum"]
            loss.backward()
        return float(loss.detach())

    def average(self, step: int) -> None:
        """The reference gets the mean of the ranks' local gradients; None stays None, or is a zero where FSDP has one.

        That is next to others in the same flat parameter: FSDP1 has one for each layer, and one for the rest.
        """
        accum = self.plan["accum"]
        # "" is what is in no layer.
        ran = {""}.union(name for forward in self.record["ran"][step * accum : (step + 1) * accum] for name in forward)
        for name, parameter in self.alone.named_parameters():
            if parameter.grad is not None:
                distributed.all_reduce(parameter.grad)
                parameter.grad /= distributed.get_world_size()
            elif self.plan["kind"] == "fsdp1_whole" or ("fsdp1" in self.plan["kind"] and self.holder(name) in ran):
                parameter.grad = torch.zeros_like(parameter)

    def divide(self) -> None:
        """Sharded gradients become averages where this torch adds them up, as a program over gloo has to do there."""
        for parameter in self.model.parameters():
            if self.reduced != 1.0 and parameter.grad is not None:
                parameter.grad /= self.reduced

    def holder(self, parameter: str) -> str:
        """The layer that a parameter is in, or ""."""
        return next((layer for layer in self.names if parameter.startswith(layer + ".")), "")

    def look_at_gradients(self) -> None:
        """How far the shards' gradients are from the reference, and the layers all of whose gradients are None."""
        gradients: Dict[str, List[Any]] = {name: [] for name in self.names}
        for name, parameter in self.model.named_parameters():
            holder = self.holder(name.replace("_fsdp_wrapped_module.", ""))
            if holder:
                gradients[holder].append(parameter.grad)
        self.record["none"].append([name for name in self.names if all(grad is None for grad in gradients[name])])
        self.record["gradients"].append(self.gradients_apart() if "fsdp2" in self.plan["kind"] else 0.0)

    def gradients_apart(self) -> float:
        """The largest difference, as a share of the largest gradient; infinite where only one of the two is None.

        What two orders of adding up differ by grows with the numbers, and gradients here are in the hundreds.
        """
        wholes = dict(self.alone.named_parameters())
        worst = largest = 0.0
        for name, parameter in self.model.named_parameters():
            sharded, other = parameter.grad, wholes[name].grad
            if (sharded is None) != (other is None):
                return float("inf")
            if sharded is not None:
                worst = max(worst, float((sharded.full_tensor() - other).abs().max()))
                largest = max(largest, float(other.abs().max()))
        return worst / (largest or 1.0)

    def apart(self) -> float:
        """The largest difference of a parameter from the reference's."""
        wholes = dict(self.alone.named_parameters())
        with wraps.whole(self.model) as sharded, torch.no_grad():
            return max(float((sharded[name].reshape_as(value) - value).abs().max()) for name, value in wholes.items())

    def follow(self) -> None:
        """The reference goes on from the sharded parameters, so that a difference of rounding does not grow."""
        with wraps.whole(self.model) as sharded, torch.no_grad():
            for name, value in self.alone.named_parameters():
                value.copy_(sharded[name].reshape_as(value))


def checkpointed(model: nn.Module, kind: str) -> None:
    if kind.startswith("layers"):
        options = {"use_reentrant": kind == "layers-reentrant"}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)  # type: ignore[operator]
    elif kind == "encoder":
        encoder: Any = model.encoder
        original = encoder.forward
        encoder.forward = lambda *args, **kwargs: checkpoint(original, *args, use_reentrant=False, **kwargs)
