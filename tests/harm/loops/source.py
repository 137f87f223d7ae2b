"""Writes a plan as a Python program, which is run as it is printed."""

from __future__ import annotations

from textwrap import indent
from typing import Dict, List

from tests.harm.loops.plan import Plan

IMPORTS = """
import contextlib
import random

import numpy
import torch
from torch import distributed, nn
from torch.utils.checkpoint import checkpoint
"""
COUNTER = """
class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, h):
        if self.training:
            self.calls += 1
            self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return h - 0.1 * self.mean
"""
BETWEEN: Dict[str, str] = {
    "clip": "nn.utils.clip_grad_norm_(net.parameters(), 0.5)",
    "clip values": "nn.utils.clip_grad_value_(net.parameters(), 0.05)",
    "own norm": "kit.log(sum(float(g.square().sum()) for g in grads()) ** 0.5)",
    "scale": "for g in grads():\n    g.mul_(0.5)",
    "set to none": "list(net.parameters())[step % 2].grad = None",
    "replace": "for p in net.parameters():\n    p.grad = None if p.grad is None else p.grad.clone()",
    "decay": "for p in net.parameters():\n    if p.grad is not None:\n        p.grad.add_(p.detach(), alpha=0.01)",
    "finite": "if not all(bool(torch.isfinite(g).all()) for g in grads()):\n    continue",
    "all_reduce": "mean = torch.tensor(total)\ndistributed.all_reduce(mean)\nkit.log(mean)",
    "barrier": "distributed.barrier()",
    "send": (
        "token = torch.full((3,), float(kit.rank))\n"
        "sent = distributed.isend(token, (kit.rank + 1) % kit.size)\n"
        "got = torch.zeros(3)\n"
        "distributed.recv(got, (kit.rank - 1) % kit.size)\n"
        "sent.wait()\nkit.log(got.sum())"
    ),
    "gather": "all_of = [None] * kit.size\ndistributed.all_gather_object(all_of, (kit.rank, step))",
}
# Whether the model is left in evaluation mode while it is called, by what, on which ranks.
EVALUATION: Dict[str, str] = {
    "ddp, no_grad": "evaluate(model, torch.no_grad)",
    "ddp, inference": "evaluate(model, torch.inference_mode)",
    "module, no_grad": "evaluate(net, torch.no_grad)",
    "module, first rank": "if kit.rank == 0:\n    evaluate(net, torch.no_grad)",
    "ddp, first rank": "if kit.rank == 0:\n    evaluate(model, torch.no_grad)",
    "train mode": "model(torch.ones(4, 6), *USES[kit.rank][0])",
}
EVALUATE = """
def evaluate(what, guard):
    what.eval()
    with guard():
        kit.log(loss_of(outputs(what(torch.ones(4, 6), *EVERYTHING))))
    what.train()
"""
HOOKS: Dict[str, str] = {
    "forward": "net.register_forward_hook(lambda module, args, out: None)",
    "backward": "net.heads[0].register_full_backward_hook(lambda module, got, put: None)",
    "parameter": "net.heads[0][0].weight.register_hook(lambda g: g.clamp(-0.05, 0.05))",
    "accumulated, counts": "net.heads[-1][0].weight.register_post_accumulate_grad_hook(count.append)",
    "accumulated, scales": "net.heads[-1][0].bias.register_post_accumulate_grad_hook(halve)",
}
OPTIMIZERS: Dict[str, str] = {
    "SGD": "torch.optim.SGD({0}, lr=0.1)",
    "SGD, momentum": "torch.optim.SGD({0}, lr=0.05, momentum=0.9)",
    "SGD, decay": "torch.optim.SGD({0}, lr=0.1, weight_decay=0.1)",
    "Adam": "torch.optim.Adam({0}, lr=0.01)",
    "AdamW": "torch.optim.AdamW({0}, lr=0.01)",
}
NOISE: Dict[str, str] = {
    "random": "x = x * random.uniform(0.9, 1.1)",
    "numpy": "x = x + torch.from_numpy(numpy.random.normal(0, 0.1, (4, 6))).to(x.dtype)",
    "torch": "x = x + 0.1 * torch.randn_like(x)",
}


def text(plan: Plan) -> str:
    """The program: a function ``train`` of a kit (:class:`tests.harm.loops.kit.Kit`)."""
    words = "\n".join(plan.words()) or "the simplest loop"
    tables = [f"EVERYTHING = {(list(range(plan.branches)), list(range(plan.heads)))!r}", "USES = ["]
    tables += [f"    {of_rank!r}," for of_rank in plan.uses] + ["]"]
    parts = [f'"""Seed {plan.seed} on {plan.ranks} ranks.\n\n{words}\n"""', IMPORTS.strip(), "\n".join(tables)]
    if plan.norm == "counter":
        parts.append("\n" + COUNTER.strip())
    parts += ["\n" + _model(plan), "\n" + _outputs(plan), "\n" + _train(plan)]
    return "\n\n".join(parts) + "\n"


def _block(*lines: str) -> str:
    return indent("\n".join(line for line in lines if line), "    ")


def _model(plan: Plan) -> str:
    norm = {"": "", "batch": ", nn.BatchNorm1d(6)", "counter": ", Counter()"}[plan.norm]
    # Its gradient would be nothing but rounding, which Adam makes a step of.
    bias = ", bias=False" if plan.norm == "batch" else ""
    drop = ", nn.Dropout(0.2)" if plan.dropout else ""
    head = f"nn.Linear(6, 6), nn.Tanh(){drop}, nn.Linear(6, 6)" if plan.apart else "nn.Linear(6, 6)"
    stem = f"nn.Identity(){norm}" if plan.apart else f"nn.Linear(6, 6{bias}){norm}, nn.Tanh(){drop}"
    built = _block(
        "super().__init__()",
        f"self.stem = nn.Sequential({stem})",
        f"self.branches = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range({plan.branches}))",
        f"self.heads = nn.ModuleList(nn.Sequential({head}) for _ in range({plan.heads}))",
        "self.branches[1] = self.branches[0]" if plan.tied else "",
        "self.never = nn.Linear(6, 6)" if plan.never else "",
    )
    reentrant = f"use_reentrant={plan.reentrant}"
    call = f"checkpoint(self.branches[n], h, {reentrant})" if plan.checkpoint == "branch" else "self.branches[n](h)"
    body = _block(
        "h = self.stem(x)",
        "for n in branches:",
        f"    h = h + {call}",
        "self.auxiliary = h.square().mean()" if plan.backward == "auxiliary loss" else "",
        "if h.requires_grad:\n    h.register_hook(lambda g: g * 0.5)" if "hidden" in plan.hooks else "",
        "return tuple(self.heads[n](h) for n in heads)",
    )
    inside = "self.body(x, branches, heads)"
    if plan.checkpoint == "whole":
        inside = f"checkpoint(self.body, x, branches, heads, {reentrant})"
    result = {"tuple": inside, "sum": f"sum({inside})", "dict": f"dict(zip(heads, {inside}))"}[plan.output]
    methods = [
        "def __init__(self):\n" + built,
        "def body(self, x, branches, heads):\n" + body,
        "def forward(self, x, branches, heads):\n" + _block(f"return {result}"),
    ]
    return "class Net(nn.Module):\n" + indent("\n\n".join(methods), "    ")


def _outputs(plan: Plan) -> str:
    listed = {"tuple": "list(out)", "sum": "[out]", "dict": "list(out.values())"}[plan.output]
    return (
        f"def outputs(out):\n    return {listed}\n\n\n"
        "def loss_of(outs):\n    return sum((out - 0.3).square().mean() for out in outs)"
    )


def _train(plan: Plan) -> str:
    lines = [
        "torch.set_default_dtype(torch.float64)" if plan.double else "",
        "net, count = Net(), []",
        "def halve(p):\n    p.grad.mul_(0.5)\n" if "accumulated, scales" in plan.hooks else "",
        _frozen(plan),
        _hooks(plan) if plan.hooks_first else "",
        f"model = kit.wrap(net{''.join(f', {name}={value!r}' for name, value in plan.options.items())})",
        "" if plan.hooks_first else _hooks(plan),
        "other = kit.wrap(nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1)))" if plan.other else "",
        _optimizers(plan),
        _seeds(),
        _data(plan),
        EVALUATE.strip() if plan.evaluation.partition(",")[0] in ("ddp", "module") else "",
        "\ndef grads():\n    return [p.grad for p in net.parameters() if p.grad is not None]\n",
        _gradients(plan) + "\n",
        f"for step in range({plan.steps}):\n" + _block(*_step(plan)),
    ]
    return "def train(kit):\n" + _block(*lines)


def _frozen(plan: Plan) -> str:
    parts = {"": "", "stem": "net.stem", "branch": "net.branches[0]", "head": "net.heads[0]"}
    return f"{parts[plan.frozen]}.requires_grad_(False)" if plan.frozen else ""


def _hooks(plan: Plan) -> str:
    return "\n".join(HOOKS[hook] for hook in plan.hooks if hook in HOOKS)


def _optimizers(plan: Plan) -> str:
    trained = "[p for p in net.parameters() if p.requires_grad]"
    kind = plan.optimizer if plan.optimizer in OPTIMIZERS else "SGD, momentum"
    if plan.other == "joint":
        trained = f"[*{trained[1:-1].join(('(', ')'))}, *other.parameters()]"
    made = [f"optimizers = [{OPTIMIZERS[kind].format(trained)}]"]
    if plan.optimizer == "two":
        made = [f"trained = {trained}"]
        halves = (OPTIMIZERS["SGD"].format("trained[::2]"), OPTIMIZERS["Adam"].format("trained[1::2] or trained[:1]"))
        made.append(f"optimizers = [{', '.join(halves)}]")
    made.append("kit.record_optimizers(*optimizers)")
    if plan.other == "critic":
        made.append("critics = torch.optim.SGD(other.parameters(), lr=0.1)\nkit.record_optimizers(critics)")
    if plan.optimizer == "scaler":
        made.append('scaler = torch.amp.GradScaler("cpu", init_scale=8.0)')
    return "\n".join(made)


def _seeds() -> str:
    return (
        "random.seed(kit.number + kit.rank)\nnumpy.random.seed(kit.number + kit.rank)\n"
        "torch.manual_seed(kit.number + 7 * kit.rank)"
    )


def _data(plan: Plan) -> str:
    if plan.data == "drawn":
        return "batches = iter(lambda: torch.randn(4, 6), None)"
    return (
        "data = torch.randn(8 * kit.size, 6, generator=torch.Generator().manual_seed(1))\n"
        "sampler = torch.utils.data.DistributedSampler(data, kit.size, kit.rank)\n"
        "loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)\n"
        "batches = (x for epoch in range(99) if sampler.set_epoch(epoch) is None for x in loader)"
    )


def _gradients(plan: Plan) -> str:
    """A function that leaves the gradients of a step, and returns its loss."""
    models = "model, other" if plan.other == "joint" else "model"
    no_sync = f"with model.no_sync() if micro < {plan.micro - 1} else contextlib.nullcontext():"
    if plan.no_sync and plan.other == "joint":
        no_sync = no_sync.replace(" if", ", other.no_sync() if", 1)
        last = f"micro < {plan.micro - 1}"
        no_sync = (
            f"with contextlib.ExitStack() as stack:\n    for each in (model, other) if {last} else ():\n"
            "        stack.enter_context(each.no_sync())"
        )
    zero = "" if plan.set_to_none else "set_to_none=False"
    call = f"step * {plan.micro} + micro"
    if plan.backward == "two forwards":
        call = f"({call}) * 2"
    inner = _block(*_micro(plan, call, models))
    if plan.no_sync:
        inner = _block(no_sync) + "\n" + indent(inner, "    ")
    body = _block(
        f"for optimizer in optimizers:\n    optimizer.zero_grad({zero})",
        "total = 0.0",
        f"for micro in range({plan.micro}):\n" + inner,
        "return total",
    )
    return "def gradients(step):\n" + body


def _micro(plan: Plan, call: str, models: str) -> List[str]:
    wants = plan.backward in ("input gradient", "input penalty", "inputs, in two") or plan.checkpoint == "whole"
    lines = ["x = next(batches)", *(NOISE[name] for name in plan.noise), "x.requires_grad_()" if wants else ""]
    lines.append(f"outs = outputs(model(x, *USES[kit.rank][{call}]))")
    if "output" in plan.hooks:
        lines.append("if outs[0].requires_grad:\n    outs[0].register_hook(lambda g: g * 0.5)")
    if plan.backward == "two forwards":
        lines.append(f"outs += outputs(model(x.flip(0), *USES[kit.rank][{call} + 1]))")
    if plan.backward == "no loss of some":
        lines.append("outs = outs[:1] if kit.rank == step % kit.size else outs")
    lines.append("loss = loss_of(outs)")
    if plan.other == "joint":
        lines.append("loss = loss + other(outs[0]).mean()")
    lines += ["kit.log(loss)", "total += float(loss.detach())", *_backward(plan, models)]
    return lines


def _backward(plan: Plan, models: str) -> List[str]:
    scale = "scaler.scale({0})" if plan.optimizer == "scaler" else "{0}"
    average = f"kit.average({models})"
    loss = scale.format("loss") + ".backward({0})"
    kept = loss.format("retain_graph=True")
    plain = [loss.format(""), average]
    by_kind: Dict[str, List[str]] = {
        "each head": [
            "for number, out in enumerate(outs):",
            f"    {scale.format('loss_of([out])')}.backward(retain_graph=number + 1 < len(outs))",
            f"    {average}",
        ],
        "auxiliary loss": [kept, average, f"{scale.format('net.auxiliary')}.backward()", average],
        "retained": [kept, average, *plain],
        "input gradient": [
            "(slope,) = torch.autograd.grad(loss, x, retain_graph=True)",
            "kit.log(slope.sum())",
            *plain,
        ],
        "input penalty": [
            "(slope,) = torch.autograd.grad(loss, x, create_graph=True)",
            "loss = loss + slope.square().sum()",
            *plain,
        ],
        "inputs": [loss.format("inputs=[p for p in net.parameters() if p.requires_grad]"), average],
        "inputs, in two": [loss.format("inputs=[x], retain_graph=True"), *plain],
    }
    return by_kind.get(plan.backward, plain)


def _step(plan: Plan) -> List[str]:
    lines: List[str] = []
    if plan.frozen_at >= 0:
        lines.append(f"if step == {plan.frozen_at}:\n    net.heads[-1].requires_grad_(False)")
    if plan.optimizer == "closure":
        lines.append("optimizers[0].step(lambda: gradients(step))\nkit.stepped()")
    else:
        lines.append("total = gradients(step)")
        unscale = "for optimizer in optimizers:\n    scaler.unscale_(optimizer)"
        lines += [unscale if plan.optimizer == "scaler" else "", *(BETWEEN[name] for name in plan.between)]
        stepping = "scaler.step(optimizer)" if plan.optimizer == "scaler" else "optimizer.step()"
        lines.append(f"for optimizer in optimizers:\n    {stepping}\n    kit.stepped()")
        lines.append("scaler.update()" if plan.optimizer == "scaler" else "")
    if plan.other == "critic":
        lines.append(
            "critics.zero_grad()\nother(next(batches)).square().mean().backward()\nkit.average(other)\n"
            "critics.step()\nkit.stepped()"
        )
    lines.append(EVALUATION[plan.evaluation] if plan.evaluation else "")
    return lines
