"""The training forwards of wrapped models: which iteration it is, its random numbers, and what was skipped in it.

A decision is a pure function of (shared seed, iteration of the wrapped model, module, call, draw): a counter-based
hash (the splitmix64 finalizer of Steele et al., "Fast splittable pseudorandom number generators", 2014). There is no
generator state that one rank could advance and another not, and nothing is communicated. The seed is agreed once, when
the model first trains.
"""

from __future__ import annotations

import hashlib
import weakref
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Deque, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ddpfix.models import internals
from ddpfix.models.identity import ByIdentity

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


def mix(value: int) -> int:
    """splitmix64's finalizer: 64 bits in, 64 well-mixed bits out."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


def fold(*parts: int) -> int:
    """Return one 64-bit number from several; the order counts."""
    value = 0
    for part in parts:
        value = mix((value + _GAMMA + (part & _MASK)) & _MASK)
    return value


def uniform(base: int, index: int) -> float:
    """Return the ``index``-th number in [0, 1) of the stream ``base``, with 53 random bits."""
    return (mix((base + (index + 1) * _GAMMA) & _MASK) >> 11) * 2.0**-53


def text_key(text: str) -> int:
    """Return a 64-bit number for a name; the same in every process (``hash`` is not)."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


class Skip(NamedTuple):
    """One skipped layer: its module, which call in this iteration, its index, and its branch (empty: all of it)."""

    module: str
    call: int
    layer: int
    part: str = ""


class Replica:
    """The state of one wrapped model on one rank: the agreed seed, the iteration, and its modules' names.

    The iteration counts training forwards with gradients enabled, so that an evaluation, on one rank or on all, does
    not shift anything. Every micro-batch of gradient accumulation is an iteration of its own.
    """

    def __init__(self, module: Any, seed: int) -> None:
        self.seed = seed
        # The number of training forwards so far, less one.
        self.iteration = -1
        self.last: Optional[Step] = None
        # Whether its group has this rank only: it draws for itself.
        self.is_alone = False
        # Whether it was logged that ranks skip the same layers.
        self.is_announced = False
        # Whether DDP looks for unused parameters in it, because it skips layers or for any other reason.
        self.flagged = False
        # Whether DDP averages its gradients; no engine that shards them.
        self.is_ddp = False
        # Whether the last forward was a micro-batch that is not communicated (``no_sync``): more of its window follow.
        self.open = False
        self._module = weakref.ref(module)
        self._keys: ByIdentity[Tuple[str, int]] = ByIdentity()
        self._peers: ByIdentity[bool] = ByIdentity()

    def module(self) -> Any:
        """Return the model inside of the wrapper; None where it was destroyed."""
        return self._module()

    def stream(self, iteration: int, key: int, call: int) -> Optional[int]:
        """Return the stream of one call of a module in an iteration; None where no other rank is to agree with."""
        if self.is_alone:
            return None
        return fold(self.seed, iteration, key, call)

    def key(self, module: Any) -> Tuple[str, int]:
        """Return the module's qualified name in the wrapped model and its number; the same on every rank."""
        if module not in self._keys:
            self._name_modules()
        if module not in self._keys:
            # A module outside the wrapped tree (held in a list, say) has no name: its class and order are used.
            name = f"{type(module).__qualname__}#{len(self._keys)}"
            self._keys[module] = (name, text_key(name))
        return self._keys[module]

    def has(self, module: Any) -> bool:
        """Return whether a module is a part of the wrapped model."""
        if module not in self._keys:
            self._name_modules()
        return module in self._keys

    def has_peers(self, module: Any) -> bool:
        """Return whether a module stands in a list with another one of its class."""
        return self.has(module) and module in self._peers

    def _name_modules(self) -> None:
        root = self._module()
        for name, module in named_modules(root) if root is not None else ():
            if module not in self._keys:
                self._keys[module] = (name, text_key(name))
        for module in peers(root) if root is not None else ():
            self._peers[module] = True


def named_modules(root: Any) -> Iterator[Tuple[str, Any]]:
    """Yield the modules of a model by their names without wrappers, which come and go (checkpoints, torch.compile)."""
    for name, module in internals.named_modules(root):
        yield ".".join(part for part in name.split(".") if part not in _WRAPPERS), module


def peers(root: Any) -> List[Any]:
    """Return the modules of a model that stand in a list of their class alone: in a mixed one, they may augment."""
    listed: Dict[str, List[Any]] = {}
    for name, module in named_modules(root):
        holder, _, place = name.rpartition(".")
        if place.isdigit():
            listed.setdefault(holder, []).append(module)
    alike = [each for each in listed.values() if len(each) > 1 and len(set(map(type, each))) == 1]
    return [module for each in alike for module in each]


_WRAPPERS = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))


class Step:
    """One training forward of a wrapped model, which gives out streams; ``reached``: its backward runs, or has run."""

    def __init__(self, replica: Replica, iteration: int, reached: bool = False) -> None:
        self.replica, self.iteration, self.reached = replica, iteration, reached
        # How often each module was called, by its name: a layer may be skipped in one call and run in another.
        self.calls: Dict[str, int] = {}
        self.skipped: List[Skip] = []

    def stream(self, module: Any) -> Tuple[Optional[int], str, int]:
        """(stream, module name, number of the call) for the next call of ``module`` in this step."""
        name, key = self.replica.key(module)
        call = self.calls.get(name, 0)
        self.calls[name] = call + 1
        return self.replica.stream(self.iteration, key, call), name, call

    def calls_of(self, module: str, layer: int) -> int:
        """Return how often a layer could have run: as often as the module that holds it was called, or itself."""
        return self.calls.get(module) or self.calls.get(f"{module}.{layer}", 1)


_CURRENT: ContextVar[Optional[Step]] = ContextVar("ddpfix_step", default=None)


class Trained:
    """What is known of the models that train.

    Attributes:
        replicas: by wrapper, of DDP and of FSDP: the public :func:`skipped_layers` has no more.
        calls: those that wait for their backward, by module: autograd knows no more (:mod:`.recompute`).
        rates: where classes read theirs whose methods are as shipped (:mod:`.cover`). They are searched when a model
            is wrapped, and not in the first forward, which torch.compile may follow.
    """

    def __init__(self) -> None:
        self.replicas: ByIdentity[Replica] = ByIdentity()
        self.calls: ByIdentity[Deque[Any]] = ByIdentity()
        self.rates: weakref.WeakKeyDictionary[type, Tuple[Any, ...]] = weakref.WeakKeyDictionary()

    def forget(self) -> None:
        """Drop all of it (undo): forwards from here on draw as they do without ddpfix, and none repeats an earlier."""
        self.replicas.clear()
        self.calls.clear()
        self.rates.clear()


TRAINED = Trained()


def current() -> Optional[Step]:
    """Return the step whose forward is running here, or None outside of a wrapped model's training forward."""
    return _CURRENT.get()


def register(wrapper: Any, module: Any, seed: int) -> Replica:
    """Remember the agreed seed of a wrapped model. ``wrapper`` is the DDP or FSDP module, ``module`` the one inside."""
    replica = TRAINED.replicas[wrapper] = Replica(module, seed)
    return replica


def replica_of(wrapper: Any) -> Optional[Replica]:
    return TRAINED.replicas.get(wrapper)


@contextmanager
def step(replica: Replica) -> Iterator[Step]:
    """The length of one training forward of a wrapped model."""
    token = enter(replica)
    try:
        yield token[0]
    finally:
        leave(token)


def enter(replica: Replica) -> Tuple[Step, Any]:
    """Begin the next iteration; for the hot path, where a context manager would cost more than the work."""
    replica.iteration += 1
    made = replica.last = Step(replica, replica.iteration)
    return made, _CURRENT.set(made)


def leave(token: Tuple[Step, Any]) -> None:
    _CURRENT.reset(token[1])


def skipped_layers(wrapper: Any) -> List[Skip]:
    """Return the layers that the last training forward of a model skipped, on every rank alike.

    Args:
        wrapper: a model that DDP or FSDP has wrapped, or the module inside of it.

    Raises:
        LookupError: ddpfix did not see this model being wrapped.
    """
    inside = (each for each in reversed(TRAINED.replicas.values()) if each.module() is wrapper)
    replica = TRAINED.replicas.get(wrapper) or next(inside, None)
    if replica is None:
        raise LookupError(
            f"ddpfix has not seen DDP or FSDP wrap this {type(wrapper).__name__}. Pass the wrapped model, and activate"
            " ddpfix before it is wrapped (import ddpfix.auto as the first line)"
        )
    return list(replica.last.skipped) if replica.last is not None else []
