"""A digest of what a batch holds, and the shapes of its tensors, without a wait for a device.

None of the user's code runs: what a class of his own has in its attributes is looked at, and no property of it.
"""

from __future__ import annotations

import hashlib
import numbers
from typing import Any, Iterator, List, Optional, Tuple

import torch

# Elements of a tensor that are looked at; a smaller one is looked at as a whole.
_SAMPLES, _SMALL = 256, 1024
# Elements of a tensor of which a copy may be made.
_COPIED = 65536
# Values of a batch that are looked at, and how deep they may lie: more are not compared.
_VALUES, _DEPTH = 256, 6
_PLAIN = (str, bytes, bool, numbers.Number, type(None))
# Indices of a batch that are looked at.
_INDICES = 8


class UnknownError(TypeError):
    """A value of which nothing can be known without cost."""


def indices(batch: Any) -> Optional[int]:
    """A number for what a sampler has given for one batch; None for indices that are no plain numbers or names."""
    some = batch[:_INDICES] if isinstance(batch, (list, tuple)) else [batch]
    if not all(isinstance(each, (numbers.Integral, str)) for each in some):
        return None
    size = len(batch) if isinstance(batch, (list, tuple)) else -1
    text = repr([size, *(each if isinstance(each, str) else int(each) for each in some)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def digest(batch: Any) -> str:
    """A few bytes that are equal for equal batches.

    Raises:
        UnknownError: it holds something else than plain values, arrays and tensors of the CPU.
    """
    found = hashlib.blake2b(digest_size=16)
    for value in _values(batch):
        found.update(repr(value if isinstance(value, _PLAIN) else _seen(value)).encode())
    return found.hexdigest()


def shapes(value: Any) -> List[Tuple[int, ...]]:
    """The shapes of the tensors and arrays in a value, on whatever device they are; a single number has none.

    Raises:
        UnknownError: a tensor is of a class of its own, which may be a part of something larger.
    """
    found = [each for each in _values(value) if not isinstance(each, _PLAIN)]
    if any(isinstance(each, torch.Tensor) and not _is_plain(each) for each in found):
        raise UnknownError
    return [tuple(each.shape) for each in found if each.ndim]


def _is_plain(tensor: Any) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter)


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"


def _values(value: Any) -> Iterator[Any]:
    for number, found in enumerate(_walk(value, _DEPTH)):
        if number == _VALUES:
            raise UnknownError
        yield found


def _walk(value: Any, depth: int) -> Iterator[Any]:
    if isinstance(value, (torch.Tensor, *_PLAIN)) or _is_array(value):
        yield value
    elif depth == 0:
        raise UnknownError
    else:
        for part in _parts(value):
            yield from _walk(part, depth - 1)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for item in dict.items(value):
            yield from item
    elif isinstance(value, (list, tuple)):
        yield from list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value)
    elif hasattr(value, "__dict__"):
        yield vars(value)
    else:
        raise UnknownError


def _seen(data: Any) -> Any:
    """The shape of a tensor or an array, its type, and elements of it at equal distances."""
    if _is_array(data) and data.dtype.kind not in "biufcSU":
        raise UnknownError
    flat = data.ravel("K") if _is_array(data) else _flat(data)
    number = len(flat)
    # An odd distance does not fall into one column of a picture.
    distance = 1 if number <= _SMALL else number // _SAMPLES | 1
    return tuple(data.shape), str(data.dtype), flat[::distance].tolist()


def _flat(tensor: Any) -> Any:
    """A tensor with one dimension, without a copy of a large one."""
    if not _is_plain(tensor) or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        raise UnknownError
    data = tensor.detach()
    if not data.is_contiguous():
        # A transposed tensor is whole in another order of its dimensions.
        data = data.permute(sorted(range(data.dim()), key=lambda each: -data.stride(each)))
    if not data.is_contiguous() and data.numel() > _COPIED:
        raise UnknownError
    return data.reshape(-1)
