"""Parameters that DDP does not know are averaged as if the model had been wrapped again (``DDPFIX_DRIFT=average``).

A layer that is replaced, added or set free after wrapping has gradients that DDP does not reduce. Before the first
training forward with another set of such parameters the ranks come together: where all of them have this set, the first
rank's values are broadcast, and from then on the gradients are averaged at the end of each backward, before anything
can clip or use them. Where not all ranks have it, nothing is averaged, and a line names it.
"""

from __future__ import annotations

import hashlib
import weakref
from typing import Any, Dict, FrozenSet, List, Sequence, Tuple

import torch
from torch import distributed

from ddpfix import log
from ddpfix.ranks import consent, limits

from . import ddp, diagnosis, reducer, sharding, strays

# Seconds for which ranks wait for each other where the set of parameters has changed.
_LIMIT = 30.0


class Averaging:
    """Averages what DDP does not know of one model.

    Args:
        model: its record.
    """

    def __init__(self, model: ddp.Wrapped) -> None:
        self._model = model
        self._wrapper = weakref.ref(model.wrapper)
        # Of the parameters that were asked about last.
        self._asked: FrozenSet[int] = frozenset()
        self._times = 0
        self._parameters: List[Any] = []
        self._is_due = False

    def forward_begins(self) -> None:
        """Called before a forward with gradients enabled."""
        # A backward that was broken off by an error never came to its end.
        self._is_due = False
        wrapper = self._wrapper()
        if wrapper is None or not (wrapper.require_backward_grad_sync and wrapper.module.training):
            return
        known = {id(parameter) for parameter in self._model.parameters}
        found = frozenset(id(p) for p in wrapper.module.parameters() if p.requires_grad and id(p) not in known)
        if found != self._asked:
            self._asked = found
            self._agree()

    def forward_ended(self, output: Any) -> None:
        """Called after a forward with gradients enabled."""
        if self._parameters and self._wrapper().require_backward_grad_sync:  # type: ignore[union-attr]
            for tensor in ddp.tensors(output):
                if tensor.grad_fn is not None:
                    tensor.grad_fn.register_prehook(self._backward_begins)

    def _agree(self) -> None:
        named = {name: each for name, each in strays.unknown(self._model).items() if each.requires_grad}
        self._parameters, self._model.averaged = [], frozenset()
        if not named:
            return
        self._times += 1
        ranks = sharding.ranks_of(self._wrapper().process_group)  # type: ignore[union-attr]
        place = f"average/{self._model.number}/{self._times}/{_digest(named)}"
        limit = min(_LIMIT, (limits.shortest(self._group) or _LIMIT) / 4)
        which = (
            f"{diagnosis.in_short(list(named))}: set free, added or replaced after DistributedDataParallel was built"
        )
        if not consent.all_come(place, ranks, limit):
            log.on_every_rank(
                f"{which}, but not on all ranks in one step (waited up to {limit:g} s), so not averaged"
                " (DDPFIX_DRIFT=average)"
            )
            return
        self._parameters, self._model.averaged = list(named.values()), frozenset(named)
        for parameter in self._parameters:
            value = parameter.detach().contiguous()
            distributed.broadcast(value, ranks[0], group=self._group)
            parameter.data.copy_(value)
        log.info(
            f"{which}. All {len(ranks)} ranks have the first one's values now, and gradients are averaged"
            " (DDPFIX_DRIFT=average)"
        )

    @property
    def _group(self) -> Any:
        return self._wrapper().process_group  # type: ignore[union-attr]

    def _backward_begins(self, gradients: Any) -> None:
        if not self._is_due:
            self._is_due = True
            # Behind what completes DDP's own reductions at the end of this backward.
            reducer.at_end_of_backward(lambda: reducer.at_end_of_backward(self._average))

    def _average(self) -> None:
        self._is_due = False
        with torch.no_grad():
            for parameters in _alike(self._parameters):
                self._average_some(parameters)

    def _average_some(self, parameters: Sequence[Any]) -> None:
        """Average gradients of one type on one device; one that no rank has stays None."""
        size = distributed.get_world_size(self._group)
        parts = [_gradient(parameter).div(size).reshape(-1) for parameter in parameters]
        used = torch.tensor(
            [float(p.grad is not None) for p in parameters], dtype=parts[0].dtype, device=parts[0].device
        )
        flat = torch.cat([*parts, used])
        distributed.all_reduce(flat, group=self._group)
        *means, used = flat.split([*(part.numel() for part in parts), len(parts)])
        for parameter, mean, times in zip(parameters, means, used.tolist()):
            if parameter.grad is not None:
                parameter.grad.copy_(mean.view_as(parameter))
            elif times:
                parameter.grad = mean.view_as(parameter).clone()


def _gradient(parameter: Any) -> Any:
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter)
    return gradient.to_dense() if gradient.is_sparse else gradient


def _alike(parameters: Sequence[Any]) -> List[List[Any]]:
    """Parameters by type and device, in an order that is the same on all ranks."""
    found: Dict[Tuple[str, str], List[Any]] = {}
    for parameter in parameters:
        found.setdefault((str(parameter.dtype), parameter.device.type), []).append(parameter)
    return [found[kind] for kind in sorted(found)]


def _digest(named: Dict[str, Any]) -> str:
    text = ";".join(f"{name} {tuple(each.shape)} {each.dtype}" for name, each in named.items())
    return hashlib.sha1(text.encode()).hexdigest()[:12]
