"""A resumed job goes on in its sequence of decisions, by what its checkpoint restores anyway.

The seed is that of torch's generator, which a restored random state has with it (or ``DDPFIX_SEED``). The number of the
first step is the count of steps that the optimizer of the model keeps for itself. The first rank says both at its first
training forward; others that have waited for it in vain go on without it, all from the same place.
"""

from __future__ import annotations

import gc
from typing import Any, Dict, List, Tuple

import torch
from torch import distributed

from ddpfix.layerdrop import schedule, training
from ddpfix.models import internals
from ddpfix.patching.site import Site
from ddpfix.ranks.agreement import rendezvous
from ddpfix.ranks.store import keys


class Start:
    """Where the sequence of one model begins; made when it is wrapped, by all ranks of its group in the same order.

    Args:
        site: of the patch that it belongs to.
        model: the module under DDP or FSDP.
        members: the global ranks of its group.
        seed: the one on which these agreed; it is taken where the user has set one (``DDPFIX_SEED``), or the first rank
            does not come.
        group: the name of their group.
    """

    def __init__(self, site: Site, model: Any, members: List[int], seed: int, group: str) -> None:
        self._is_chosen, self._seed = site.settings.seed() is not None, seed
        kind = type(model).__qualname__
        number = keys.count(keys.default_store(), f"position/{kind}")
        self._key = schedule.fold(schedule.text_key(kind), number)
        self._word = rendezvous.Word(members, distributed.get_rank(), group)
        self.is_first = self._word.is_mine

    def __call__(self, replica: training.Replica) -> Tuple[int, int]:
        """Return the seed and the number of the first step.

        Raises:
            AgreementError: the first rank has ended with an error, or the group is no more.
        """
        seed, first = self._seed, 0
        if self.is_first:
            first = steps_taken(replica.module())
            if not self._is_chosen:
                seed = schedule.fold(torch.initial_seed(), self._key)
        settled = self._word.settle((seed, first)) or (self._seed, 0)
        return settled[0], settled[1]


def steps_taken(model: Any) -> int:
    """Return how many steps the optimizers of a model have taken, by their own count; 0 where they keep none (SGD)."""
    parameters = [] if model is None else list(internals.named_parameters(model).values())
    # No class or object of the program is asked anything: a search comes across all of them.
    optimizers = [each for each in gc.get_objects() if issubclass(type(each), torch.optim.Optimizer)]
    states = [vars(each).get("state") for each in optimizers]
    entries = [dict.get(state, one) for state in states if isinstance(state, dict) for one in parameters]
    return max((_step(entry) for entry in entries if isinstance(entry, dict)), default=0)


def _step(entry: Dict[str, Any]) -> int:
    step = entry.get("step", 0)
    return int(step) if isinstance(step, (int, float, torch.Tensor)) else 0
