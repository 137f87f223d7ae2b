"""Where each model is in its sequence of decisions, kept in the random states that a program saves and restores.

torch's CPU generator gives its state as bytes in which each of 624 words of 32 bits has 64: torch writes zeros into the
other halves, and ignores them when a state is set. There a saved state carries the seed and the next step of each model
that skips layers. No number that a generator draws depends on it, and a state is valid without ddpfix as well.
"""

from __future__ import annotations

import contextlib
import struct
import weakref
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

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


# The models of this process that have begun, by their keys, and what was restored for those that have not.
_BEGUN: Dict[int, Tuple[weakref.ref[Replica], int]] = {}
_RESTORED: Dict[int, Position] = {}
# The initial seed of the restored state: another one at the first step means that the program has seeded anew since.
_RESTORED_SEED: List[int] = []
# The last positions that were written, and their bytes: activation checkpointing asks for states many times a step.
_LAST: List[Tuple[Dict[int, Position], bytes]] = []


def begun(key: int, source: int, replica: Replica) -> None:
    """Keep the position of a model in saved states from here on.

    Args:
        key: of the model; the same in each run of a program.
        source: see :class:`Position`.
        replica: its state, with the seed that was agreed.
    """
    _BEGUN[key] = weakref.ref(replica), source


def restored(key: int, source: int) -> Optional[Position]:
    """The position of a model in the state that was restored last; None where that has none for it."""
    position = _RESTORED.get(key)
    if position is None or position.source != source or [torch.initial_seed()] != _RESTORED_SEED:
        return None
    return position


def forget() -> None:
    """Drop all positions (undo)."""
    _BEGUN.clear()
    _RESTORED.clear()
    _RESTORED_SEED.clear()
    _LAST.clear()


def write(state: Any) -> None:
    """Write the positions of all models into a state of torch's CPU generator; nothing if no model has skipped."""
    positions = _current()
    # A state that cannot be written to (of a tensor subclass, say) is given as it is.
    with contextlib.suppress(Exception):
        if positions and state.numel() == _SIZE:
            _halves(state)[:] = _words(_encoded(positions))


def read(state: Any) -> None:
    """Take the positions from a state that the program restores; it replaces what was restored before."""
    _RESTORED.clear()
    with contextlib.suppress(Exception):
        if state.numel() == _SIZE:
            _RESTORED.update(_decoded(_halves(state.cpu()).tobytes()))
            _RESTORED_SEED[:] = struct.unpack_from("<Q", state.cpu().numpy().tobytes())


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


def _current() -> Dict[int, Position]:
    positions = dict(_RESTORED)
    for key, (reference, source) in list(_BEGUN.items()):
        replica = reference()
        if replica is None:
            del _BEGUN[key]
        elif replica.drawn:
            positions[key] = Position(source, replica.seed, replica.first + replica.iteration + 1)
    return positions


def _halves(state: Any) -> Any:
    """The halves of a state's words that torch ignores, as a view."""
    import numpy

    words = state.numpy()[_FIRST : _FIRST + 8 * _WORDS]
    return words.view(numpy.dtype("<u4"))[1::2]


def _words(content: bytes) -> Any:
    import numpy

    return numpy.frombuffer(content, numpy.dtype("<u4"))


def _encoded(positions: Dict[int, Position]) -> bytes:
    if not _LAST or _LAST[0][0] != positions:
        # The first models count if there is no room for all.
        entries = list(positions.items())[:_LIMIT]
        body = b"".join(_ENTRY.pack(key, *position) for key, position in entries)
        content = _HEAD.pack(_MAGIC, len(entries), _checksum(body)) + body
        _LAST[:] = [(positions, content.ljust(4 * _WORDS, b"\0"))]
    return _LAST[0][1]


def _decoded(content: bytes) -> Dict[int, Position]:
    """The positions in the bytes of a state; none where ddpfix has not written them."""
    magic, count, checksum = _HEAD.unpack_from(content)
    body = content[_HEAD.size : _HEAD.size + _ENTRY.size * min(count, _LIMIT)]
    if magic != _MAGIC or checksum != _checksum(body):
        return {}
    return {key: Position(*position) for key, *position in _ENTRY.iter_unpack(body)}


def _checksum(body: bytes) -> int:
    return text_key(body.hex())
