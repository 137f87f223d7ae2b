"""Rank-synchronous decisions: the same random numbers on every rank, without communication.

A decision is a pure function of (shared seed, iteration of the wrapped model, module, call, draw): a counter-based
hash (the splitmix64 finalizer of Steele et al., "Fast splittable pseudorandom number generators", 2014). There is no
generator state that one rank could advance and another not. The seed is agreed once, when the model first trains.
"""

from __future__ import annotations

import hashlib

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
