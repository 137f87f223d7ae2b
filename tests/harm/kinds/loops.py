"""Training loops of right programs that :mod:`tests.harm.loops` does not draw: hooks, kinds of models, checkpoints."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

from tests.harm.kinds.draws import PACKAGE, SKIPS, Encoder
from tests.harm.made import batches, fit, fit_heads, net, state, steps, two
from tests.harm.program import program


@program(sample=True)
def backward_for_each_head(rank, size):
    return fit_heads(DDP(two(0)), rank, 30)


def all_gradients_by_one_of_two_backwards(rank, size):
    wrapped = DDP(two(0), find_unused_parameters=True)
    for step, (x, y) in enumerate(steps(torch.optim.SGD(wrapped.parameters(), 0.05), rank, 30)):
        left, right = wrapped(x)
        ((left if step % 2 else right) - y).pow(2).mean().backward()
    return state(wrapped)


class Checked(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.layers, self.reentrant = nn.Linear(4, 4), net(), reentrant

    def forward(self, x):
        return checkpoint(self.layers, self.first(x), True, use_reentrant=self.reentrant)


class Around(nn.Module):
    """Reentrant checkpoints that hide no parameter: functions without any, and a frozen layer, also of a teacher."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.never = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(2, 2)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def run(self, layer, x):
        return checkpoint(lambda each: torch.tanh(layer(each)), x, use_reentrant=True)

    def forward(self, x):
        y = self.first(x)
        with torch.no_grad():
            taught = self.run(self.frozen, y)
        z = checkpoint(nn.functional.gelu, y, use_reentrant=True)
        return self.last(
            checkpoint(lambda each: each * z.detach(), self.run(self.frozen, z), use_reentrant=True) + taught
        )


@program(sample=True)
def reentrant_checkpoints_that_hide_nothing_beside_the_flag(rank, size):
    torch.manual_seed(0)
    wrapped = DDP(Around(), find_unused_parameters=True)
    for step, (x, y) in enumerate(steps(torch.optim.SGD(wrapped.parameters(), 0.05), rank, 12)):
        loss = (wrapped(x) - y).pow(2).mean()
        loss.backward(retain_graph=True)
        if step % 3 == 2:
            # Once more, and averaged by hand.
            before = {each: each.grad.clone() for each in wrapped.parameters() if each.grad is not None}
            loss.backward()
            for each, gradient in before.items():
                more = each.grad - gradient
                dist.all_reduce(more)
                each.grad = gradient + more / size
    return state(wrapped)


def hook_of_its_own_counts_buckets(rank, size):
    sent = []

    def hook(group, bucket):
        sent.append((bucket.index(), bucket.is_last(), bucket.buffer().numel()))
        return default_hooks.allreduce_hook(group, bucket)

    wrapped = DDP(net(), bucket_cap_mb=0.0001)
    wrapped.register_comm_hook(dist.group.WORLD, hook)
    fit(wrapped, rank, steps=6, other=True)
    return sent, state(wrapped)


def uneven_batches_under_join(rank, size):
    wrapped = DDP(net())
    with wrapped.join():
        fit(wrapped, rank, steps=5 + 3 * rank, other=True)
    return state(wrapped)


def hooks_of_every_kind(rank, size):
    model, calls = net(), []
    model.head.register_forward_pre_hook(lambda part, given: calls.append("pre"))
    model.head.register_forward_hook(lambda part, given, out: calls.append("forward"))
    model.head.register_full_backward_hook(lambda part, given, out: calls.append("backward"))
    model.head.weight.register_hook(lambda grad: calls.append("tensor"))
    model.head.weight.register_post_accumulate_grad_hook(lambda each: calls.append("accumulated"))
    wrapped = DDP(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.05)
    optimizer.register_step_pre_hook(lambda *about: calls.append("before the step"))
    optimizer.register_step_post_hook(lambda *about: calls.append("after the step"))
    fit(wrapped, rank, optimizer=optimizer, other=True)
    return calls, state(wrapped)


def closure_of_lbfgs(rank, size):
    wrapped = DDP(net().eval())
    optimizer = torch.optim.LBFGS(wrapped.parameters(), max_iter=4)
    for x, y in batches(rank, 5):

        def closure():
            optimizer.zero_grad()
            loss = (wrapped(x, other=True) - y).pow(2).mean()  # noqa: B023
            loss.backward()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            return mean

        optimizer.step(closure)
    return state(wrapped)


def tied_and_normalised():
    last = nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), last)
    model[2].weight = model[0].weight
    return model


def normalised_by_batch():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


# The model, and what DDP is told.
MODELS = {
    "a reentrant checkpoint": (lambda: Checked(True), {}),
    "a checkpoint beside the flag": (lambda: Checked(False), {"find_unused_parameters": True}),
    "a static graph": (lambda: Checked(True), {"static_graph": True}),
    "weights that are tied": (tied_and_normalised, {}),
    "buffers": (normalised_by_batch, {}),
}


@program(ranks=3, sample=True)
def models_of_many_kinds(rank, size):
    found = {}
    for name, (make, how) in MODELS.items():
        torch.manual_seed(0)
        wrapped = DDP(make(), **how)
        fit(wrapped, rank, steps=20)
        wrapped.eval()
        found[name] = state(wrapped), wrapped(torch.ones(2, 4))
    wrapped = DDP(net(), gradient_as_bucket_view=True)
    wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    fit(wrapped, rank, steps=20, other=True)
    return found, state(wrapped)


@program(needs=PACKAGE, may=(SKIPS,))
def wrapper_in_evaluation_module_in_training(rank, size):
    torch.manual_seed(0)
    wrapped = DDP(nn.Sequential(nn.Linear(4, 4), Encoder(), nn.Linear(4, 2)), find_unused_parameters=True)
    wrapped.eval()
    wrapped.module.train()
    fit(wrapped, rank, steps=10, optimizer=torch.optim.SGD(wrapped.parameters(), 0.01))
    return state(wrapped)


def compiled_without_a_backend(rank, size):
    wrapped = torch.compile(DDP(net().eval()), backend="eager")
    fit(wrapped, rank, steps=5, other=True)
    return state(wrapped)
