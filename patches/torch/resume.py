"""A resumed job goes on in its sequence of decisions, if it restores torch's random state.

The first rank says at its first training forward where the sequence begins: where the restored state has it, or anew,
from the state of its generator. Others that have waited for it in vain go on without it, all from the same place. Saved
states carry the place (:mod:`ddpfix.layerdrop.position`).
"""

from __future__ import annotations

import functools
import hashlib
import sys
from typing import Any, Callable, List, Tuple

import torch
from torch import distributed

from ddpfix import log
from ddpfix.layerdrop import position, schedule, training
from ddpfix.patching.dynamo import skip_frames, skip_module
from ddpfix.patching.site import Site
from ddpfix.ranks import agreement, store


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
        chosen = site.settings.seed()
        self._is_chosen, self._seed = chosen is not None, seed
        self._positions = site.keep(position.Positions)
        self._source = schedule.fold(0, 0) if chosen is None else schedule.fold(1, chosen)
        kind = type(model).__qualname__
        number = store.count(store.default_store(), f"position/{kind}")
        self._key = schedule.fold(schedule.text_key(kind), number)
        self._word = agreement.Word(members, distributed.get_rank(), group)
        self.is_first = self._word.is_mine

    def __call__(self, replica: training.Replica) -> Tuple[int, int]:
        """The seed and the number of the first step.

        Raises:
            AgreementError: the first rank has ended with an error, or the group is no more.
        """
        found = self._positions.restored(self._key, self._source)
        own = (self._anew(), 0) if found is None else (found.seed, found.step)
        seed, step = self._word.settle(own) or (self._seed, 0)
        if found is not None:
            _say(own, (seed, step))
        self._positions.begun(self._key, self._source, replica)
        return seed, step

    def _anew(self) -> int:
        return self._new_seed() if self.is_first and not self._is_chosen else self._seed

    def _new_seed(self) -> int:
        state = torch.default_generator.get_state().numpy().tobytes()
        return schedule.fold(int.from_bytes(hashlib.sha256(state).digest()[:8], "big"), self._key)


def _say(own: Tuple[int, int], settled: Tuple[int, int]) -> None:
    if own == settled:
        log.info(f"LayerDrop goes on at step {own[1]} of the job whose random states were restored")
    else:
        log.warning(
            "LayerDrop does not go on where the job was whose random states were restored: other ranks have begun to"
            " train this model without this one"
        )


def save(site: Site, owner: Any) -> None:
    """Have ``owner.get_rng_state`` write the places of all models into the states that it returns."""
    if not position.carries():
        log.warning("a resumed job begins its LayerDrop anew: the random states of this torch have another layout")
        return
    for ours in (position, agreement, store, sys.modules[__name__]):
        skip_module(ours)
    positions = site.keep(position.Positions)
    site.at_undo(positions.forget)
    site.wrap_hot(owner, "get_rng_state", functools.partial(_written, positions))
    skip_frames(vars(owner)["get_rng_state"])


def restore(site: Site, owner: Any) -> None:
    """Have ``owner.set_rng_state`` read them from the states that it gets."""
    if position.carries():
        site.wrap_hot(owner, "set_rng_state", functools.partial(_read, site.keep(position.Positions)))
        skip_frames(vars(owner)["set_rng_state"])


def _written(positions: position.Positions, original: Callable[[], Any]) -> Callable[[], Any]:
    def get_rng_state() -> Any:
        state = original()
        positions.write(state)
        return state

    return get_rng_state


def _read(positions: position.Positions, original: Callable[[Any], None]) -> Callable[[Any], None]:
    def set_rng_state(new_state: Any) -> None:
        original(new_state)
        positions.read(new_state)

    return set_rng_state
