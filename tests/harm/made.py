"""The small model, data and loop that many programs share."""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    """Two layers, and a head beside them that one call may leave out."""

    def __init__(self, wide: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, wide), nn.Tanh(), nn.Dropout(0.1))
        self.head = nn.Linear(wide, 2)
        self.other = nn.Linear(wide, 2)

    def forward(self, x: torch.Tensor, other: bool = False) -> torch.Tensor:
        hidden = self.body(x)
        out: torch.Tensor = self.head(hidden)
        return out + self.other(hidden) if other else out


class Two(nn.Module):
    """Two heads on one input, with nothing in common: DDP takes a backward for each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        self.right = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        return self.left(x), self.right(x)


def seeded(kind: Callable[[], Any], seed: int = 0) -> Any:
    """Return a model with the same weights on all ranks; the streams stay as they are."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return kind()


net, two = functools.partial(seeded, Net), functools.partial(seeded, Two)


def batches(rank: int, steps: int) -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of this rank's own."""
    draws = torch.Generator().manual_seed(100 + rank)
    for _ in range(steps):
        x = torch.randn(3, 4, generator=draws)
        yield x, x[:, :2].sin()


def steps(optimizer: Any, rank: int, count: int) -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of this rank's own: gradients are reset before each, and the optimizer steps after it."""
    for batch in batches(rank, count):
        optimizer.zero_grad()
        yield batch
        optimizer.step()


def fit(model: Any, rank: int, steps: int = 5, optimizer: Optional[Any] = None, **how: Any) -> float:
    """Train a model, wrapped or not, on a rank's batches and return the last loss; ``how`` goes to the forward."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    loss = torch.zeros(())
    for x, y in batches(rank, steps):
        loss = stepped(model, optimizer, x, y, **how)
    return float(loss.item())


def fit_heads(wrapped: Any, rank: int, count: int, rate: float = 0.1) -> Dict[str, torch.Tensor]:
    """Train a model of two heads with a backward for each of them, and return its state."""
    for x, y in steps(torch.optim.SGD(wrapped.parameters(), rate), rank, count):
        for head, sign in zip(wrapped(x), (-1, 1)):
            (head + sign * y).pow(2).mean().backward()
    return state(wrapped)


def stepped(model: Any, optimizer: Any, x: torch.Tensor, y: torch.Tensor, **how: Any) -> torch.Tensor:
    """Make one step and return its loss."""
    optimizer.zero_grad()
    loss: torch.Tensor = (model(x, **how) - y).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss


def fitted(rank: int) -> Any:
    """Return a model under DDP of which each step uses all, trained on this rank's batches."""
    wrapped = DistributedDataParallel(net())
    fit(wrapped, rank, other=True)
    return wrapped


def in_threads(train: Callable[[int], Any]) -> List[Any]:
    """Run a function of a number in two threads at once, and return what it has returned."""
    found: Dict[int, Any] = {}
    workers = [threading.Thread(target=lambda at=at: found.update({at: train(at)})) for at in range(2)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    return [found[at] for at in range(2)]


@contextlib.contextmanager
def own_group() -> Iterator[None]:
    """Have a group of gloo, which all ranks leave at the same time."""
    dist.init_process_group("gloo")
    yield
    dist.barrier()
    dist.destroy_process_group()


def meeting(kind: Any) -> Any:
    """Return a class of tensors that notes in ``seen`` which functions it meets."""

    class Meeting(kind):  # type: ignore[misc]
        seen: List[str] = []

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Meeting.seen.append(getattr(func, "__name__", str(func)))
            return super().__torch_function__(func, types, args, kwargs or {})

    return Meeting


def noting(kind: Any) -> Any:
    """Return a class that notes in ``seen`` how its attributes are used."""

    class Noting(kind):  # type: ignore[misc]
        seen: List[Tuple[str, str]] = []

        def __setattr__(self, name: str, value: Any) -> None:
            Noting.seen.append(("set", name))
            super().__setattr__(name, value)

        def __delattr__(self, name: str) -> None:
            Noting.seen.append(("delete", name))
            super().__delattr__(name)

        def __getattr__(self, name: str) -> Any:
            Noting.seen.append(("get", name))
            return super().__getattr__(name)

    return Noting


def state(model: Any) -> Dict[str, torch.Tensor]:
    """Return a copy of a model's parameters and buffers."""
    return {name: each.detach().clone() for name, each in model.state_dict().items()}
