"""What is saved, copied and sent: models, wrappers, optimizers and classes, in any step."""

import copy
import functools
import io
import pickle

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.harm.made import batches, fit, net, state
from tests.harm.program import program, script


def saved(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    return file.getvalue()


def loaded(data, **how):
    return torch.load(io.BytesIO(data), **how)


@program(sample=True)
def model_in_each_step(rank, size):
    wrapped = DDP(net(), find_unused_parameters=True)
    optimizer, files = torch.optim.SGD(wrapped.parameters(), 0.1), []
    for x, y in batches(rank, 55):
        (wrapped(x, other=True) - y).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        files.append(saved(wrapped.module))
    return files


def bytes_of_all_that_is_saved(rank, size):
    wrapped = DDP(net(), find_unused_parameters=True)
    optimizer = torch.optim.Adam(wrapped.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for x, y in batches(rank, 4):
        (wrapped(x) - y).pow(2).mean().backward()
        optimizer.step()
        schedule.step()
    things = {"net": wrapped.module, "adam": optimizer, "schedule": schedule.state_dict(), "rng": torch.get_rng_state()}
    states = saved({"net": wrapped.state_dict(), "adam": optimizer.state_dict(), "rng": torch.get_rng_state()})
    return {name: saved(each) for name, each in things.items()}, loaded(states, weights_only=True), states


def ema_by_deepcopy(rank, size):
    wrapped = DDP(net(), find_unused_parameters=True)
    optimizer, average, best = torch.optim.SGD(wrapped.parameters(), 0.1), None, []
    for step, (x, y) in enumerate(batches(rank, 60)):
        (wrapped(x, other=True) - y).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 45:
            average = copy.deepcopy(wrapped.module)
        if average is not None:
            with torch.no_grad():
                for mine, theirs in zip(average.parameters(), wrapped.module.parameters()):
                    mine.lerp_(theirs, 0.1)
    best.append(saved(average))
    return best, state(loaded(best[0], weights_only=False)), sorted(vars(average)), len(average._forward_hooks)


def whole_wrapper_by_pickle_and_deepcopy(rank, size):
    """DDP pickles without its group; whoever loads it has the default one."""
    wrapped = DDP(net(), find_unused_parameters=True)
    fit(wrapped, rank, other=True)
    copies = pickle.loads(pickle.dumps(wrapped)), copy.deepcopy(wrapped)
    for again in copies:
        fit(again, rank, other=True)
    return [type(again).__name__ for again in copies], [*map(state, (wrapped, *copies))], len(pickle.dumps(wrapped))


def classes_by_reference(rank, size):
    from torch.utils.checkpoint import CheckpointFunction, checkpoint

    things = [DDP, nn.Module, torch.optim.SGD, torch.utils.data.DataLoader, dist.all_reduce, checkpoint]
    things += [CheckpointFunction, dist.init_process_group, dist.destroy_process_group, torch.save, dist.barrier]
    makers = {"ddp": functools.partial(DDP, bucket_cap_mb=1), "adam": functools.partial(torch.optim.Adam, lr=0.01)}
    data = pickle.dumps(makers)
    again = pickle.loads(data)
    wrapped = again["ddp"](net())
    fit(wrapped, rank, optimizer=again["adam"](wrapped.parameters()), other=True)
    same = [pickle.loads(pickle.dumps(each)) is each for each in things]
    return state(wrapped), data, [pickle.dumps(each) for each in things], same


def save_within_hooks(rank, size):
    """Of the forward and of the backward of one part another part is saved."""
    wrapped, files = DDP(net(), find_unused_parameters=True), []
    wrapped.module.head.register_forward_hook(lambda *about: files.append(saved(wrapped.module.body)))
    wrapped.module.head.weight.register_hook(lambda grad: files.append(saved(wrapped.module.body)))
    fit(wrapped, rank, steps=50, other=True)
    return files


def tensors_keep_no_attributes(rank, size):
    wrapped = DDP(net())
    out, losses = [], []
    for x, y in batches(rank, 5):
        hidden = wrapped(x)
        loss = (hidden - y).pow(2).mean() + 0 * sum(each.sum() for each in wrapped.parameters())
        loss.backward()
        out.append(sorted(vars(hidden)) + sorted(vars(x)) + sorted(vars(loss)))
        losses.append(saved([hidden.detach(), loss.detach(), x, list(wrapped.parameters())]))
    return out, losses, [sorted(vars(each)) for each in wrapped.parameters()]


def hooks_of_everything_are_the_programs(rank, size):
    wrapped = DDP(net(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1, momentum=0.9)
    counts = []
    for _ in range(9):
        fit(wrapped, rank, steps=5, optimizer=optimizer)
        tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        tables += ("_state_dict_hooks", "_load_state_dict_pre_hooks")
        counts.append([len(getattr(part, name)) for part in wrapped.module.modules() for name in tables])
        counts.append([each._backward_hooks is None for each in wrapped.parameters()])
        counts.append(len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks))
    return counts, [sorted(vars(part)) for part in wrapped.module.modules()], sorted(vars(optimizer))


def traced_scripted_and_exported(rank, size):
    wrapped, scripted = DDP(net(), find_unused_parameters=True), DDP(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    fit(wrapped, rank, steps=45, other=True)
    fit(scripted, rank, steps=45)
    traced, file = torch.jit.trace(wrapped.module.eval(), torch.ones(1, 4)), io.BytesIO()
    torch.jit.save(traced, file)
    exported = torch.export.export(wrapped.module.eval(), (torch.ones(1, 4),))
    models = torch.jit.load(io.BytesIO(file.getvalue())), torch.jit.script(scripted.module), exported.module()
    texts = str(traced.graph).count("\n"), models[1].code, len(list(exported.graph.nodes))
    return [each(torch.ones(1, 4)) for each in models], texts


def under_fully_shard(rank, size):
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = net()
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    fit(model, rank, other=True)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    kept = sorted(name for name in vars(model) if not name.startswith("_"))
    return saved(whole), kept, pickle.dumps(type(net())), [len(each._forward_hooks) for each in model.modules()]


def optimizer_by_deepcopy_in_meta_learning(rank, size):
    wrapped = DDP(net())
    outer = torch.optim.SGD(wrapped.parameters(), 0.1, momentum=0.9)
    fit(wrapped, rank, optimizer=outer, other=True)
    inner_model = copy.deepcopy(wrapped.module)
    inner = torch.optim.SGD(inner_model.parameters(), 0.1, momentum=0.9)
    inner.load_state_dict(copy.deepcopy(outer.state_dict()))
    fit(inner_model, rank, optimizer=inner)
    return state(inner_model), saved(copy.deepcopy(outer)), saved(inner)


def zero_consolidated(rank, size):
    wrapped = DDP(net())
    optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.Adam, lr=0.01)
    fit(wrapped, rank, optimizer=optimizer, other=True)
    optimizer.consolidate_state_dict(0)
    return saved(optimizer.state_dict()) if rank == 0 else None, state(wrapped)


script("saved", "main_class_pickled")
script("saved", "read_where_only_torch_is", fresh=True)
