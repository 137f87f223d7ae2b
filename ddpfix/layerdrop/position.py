"""Where each model is in its sequence of decisions, kept in the random states that a program saves and restores.

torch's CPU generator gives its state as bytes in which each of 624 words of 32 bits has 64: torch writes zeros into the
other halves, and ignores them when a state is set. There a saved state carries the seed and the next step of each model
that skips layers. No number that a generator draws depends on it, and a state is valid without ddpfix as well.
"""

from __future__ import annotations

import contextlib
import struct
import weakref
from typing import Any, Dict, NamedTuple, Optional, Tuple

import torch

from ddpfix.layerdrop.schedule import text_key
from ddpfix.layerdrop.training import Replica

# Bytes of a state: the generator's initial seed, then further fields, the words, and the last number of a pair.
_SIZE, _FIRST, _WORDS = 5056, 24, 624
_MAGIC = b"ddpfix 1"
_HEAD = struct.Struct("<8sQQ")
_ENTRY = struct.Struct("<QQQQ")
_LIMIT = (4 * _WORDS - _HEAD.size) // _ENTRY.size


class Position(NamedTuple):
    """A model's place in its sequence.

    Attributes:
        source: a number for where the seed comes from (the setting ``seed``): a user may have changed it since.
        seed: of the model's decisions.
        step: the next one.
    """

    source: int
    seed: int
    step: int


class Positions:
    """The positions of the models of this process."""

    def __init__(self) -> None:
        # The models that have begun, by their keys, and what was restored for those that have not.
        self._begun: Dict[int, Tuple[weakref.ref[Replica], int]] = {}
        self._restored: Dict[int, Position] = {}
        # The initial seed of the restored state: another one at the first step means that the program has seeded anew.
        self._seed: Optional[int] = None
        # What was written last, and its bytes: activation checkpointing asks for states many times a step.
        self._last: Tuple[Dict[int, Position], bytes] = {}, b""

    def begun(self, key: int, source: int, replica: Replica) -> None:
        """Keep the position of a model in saved states from here on.

        Args:
            key: of the model; the same in each run of a program.
            source: see :class:`Position`.
            replica: its state, with the seed that was agreed.
        """
        self._begun[key] = weakref.ref(replica), source

    def restored(self, key: int, source: int) -> Optional[Position]:
        """The position of a model in the state that was restored last; None where that has none for it."""
        position = self._restored.get(key)
        if position is None or position.source != source or torch.initial_seed() != self._seed:
            return None
        return position

    def forget(self) -> None:
        """Drop all of them (undo): who has kept a function of ours writes nothing any more."""
        self._begun.clear()
        self._restored.clear()

    def write(self, state: Any) -> None:
        """Write the positions of all models into a state of torch's CPU generator; nothing if none has skipped."""
        positions = self._current()
        # A state that cannot be written to (of a tensor subclass, say) is given as it is.
        with contextlib.suppress(Exception):
            if positions and state.numel() == _SIZE:
                if self._last[0] != positions:
                    self._last = positions, _encoded(positions)
                _halves(state)[:] = _words(self._last[1])

    def read(self, state: Any) -> None:
        """Take the positions from a state that the program restores; it replaces what was restored before."""
        self._restored.clear()
        with contextlib.suppress(Exception):
            if state.numel() == _SIZE:
                self._restored.update(_decoded(_halves(state.cpu()).tobytes()))
                (self._seed,) = struct.unpack_from("<Q", state.cpu().numpy().tobytes())

    def _current(self) -> Dict[int, Position]:
        positions = dict(self._restored)
        for key, (reference, source) in list(self._begun.items()):
            replica = reference()
            if replica is None:
                del self._begun[key]
            elif replica.drawn:
                positions[key] = Position(source, replica.seed, replica.first + replica.iteration + 1)
        return positions


def carries() -> bool:
    """Whether this torch's states have room for positions, and a generator is the same with them and without."""
    try:
        one, other = torch.Generator().manual_seed(1), torch.Generator()
        state = one.get_state()
        marked = state.clone()
        empty = not _halves(marked).any()
        _halves(marked)[:] = _words(_encoded({1: Position(2, 3, 4)}))
        other.set_state(marked)
        return bool(empty and state.numel() == _SIZE and torch.equal(other.get_state(), state))
    except Exception:
        return False


def _halves(state: Any) -> Any:
    """The halves of a state's words that torch ignores, as a view."""
    import numpy

    words = state.numpy()[_FIRST : _FIRST + 8 * _WORDS]
    return words.view(numpy.dtype("<u4"))[1::2]


def _words(content: bytes) -> Any:
    import numpy

    return numpy.frombuffer(content, numpy.dtype("<u4"))


def _encoded(positions: Dict[int, Position]) -> bytes:
    # The first models count if there is no room for all.
    entries = list(positions.items())[:_LIMIT]
    body = b"".join(_ENTRY.pack(key, *position) for key, position in entries)
    content = _HEAD.pack(_MAGIC, len(entries), _checksum(body)) + body
    return content.ljust(4 * _WORDS, b"\0")


def _decoded(content: bytes) -> Dict[int, Position]:
    """The positions in the bytes of a state; none where ddpfix has not written them."""
    magic, count, checksum = _HEAD.unpack_from(content)
    body = content[_HEAD.size : _HEAD.size + _ENTRY.size * min(count, _LIMIT)]
    if magic != _MAGIC or checksum != _checksum(body):
        return {}
    return {key: Position(*position) for key, *position in _ENTRY.iter_unpack(body)}


def _checksum(body: bytes) -> int:
    return text_key(body.hex())
