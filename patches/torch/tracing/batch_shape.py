"""What a wrapped model is given: the shape of its largest tensor, and how much of the batch is padding.

Only what lies on the CPU is looked into: to read a mask on a GPU would make the program wait for it.
"""

from __future__ import annotations

from typing import Any, Iterator, List, Optional, Sequence, Tuple

import torch

# Names of masks that have ones where there is content, and of those that have them where there is padding.
_MASKS, _PADDING = ("attention_mask",), ("padding_mask", "src_key_padding_mask", "key_padding_mask")
# What follows a tensor's name in the name of its lengths: speech, speech_lengths (FunASR, WeNet).
_LENGTHS = ("_lengths", "_lens", "_length", "_len")
# More elements of a list than these are not looked at.
_MOST = 32


class LastBatch:
    """The inputs of the forwards of one step."""

    def __init__(self) -> None:
        self.shape: Optional[List[int]] = None
        self._largest = -1
        self._padded = self._places = 0

    @property
    def padding(self) -> Optional[float]:
        """The part of the batches that is padding; None where no mask and no lengths were seen."""
        return self._padded / self._places if self._places else None

    def fed(self, inputs: Sequence[Any], kwargs: Any) -> bool:
        """Take the inputs of a forward; return whether they have the largest tensor of the step so far."""
        named, before = list(_tensors(inputs, kwargs)), self._largest
        for _, tensor in named:
            size = tensor.numel()
            if size > self._largest:
                self._largest, self.shape = size, list(tensor.shape)
        found = _padding(named)
        if found is not None:
            self._padded += found[0]
            self._places += found[1]
        return self._largest > before


def _tensors(inputs: Sequence[Any], kwargs: Any) -> Iterator[Tuple[str, Any]]:
    """Yield the tensors among arguments, also one level inside of dictionaries and lists, with their names."""
    for name, value in (*(("", each) for each in inputs), *kwargs.items()):
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, (list, tuple)):
            yield from (("", each) for each in value[:_MOST] if isinstance(each, torch.Tensor))
        elif hasattr(value, "items"):
            for inner, each in list(value.items())[:_MOST]:
                if isinstance(each, torch.Tensor):
                    yield str(inner), each


def _padding(named: Sequence[Tuple[str, Any]]) -> Optional[Tuple[int, int]]:
    """(places that are padding, all places) of a batch."""
    for name, tensor in named:
        if name in _MASKS and _is_mask(tensor):
            return tensor.numel() - int(tensor.count_nonzero()), tensor.numel()
        if name in _PADDING and _is_mask(tensor):
            return int(tensor.count_nonzero()), tensor.numel()
    by_name = dict(named)
    for name, tensor in named:
        padded = next((by_name.get(name[: -len(end)]) for end in _LENGTHS if name.endswith(end)), None)
        if padded is not None and _are_lengths(tensor, padded):
            places = int(padded.shape[0] * padded.shape[1])
            # Lengths of something else (of the text, or after a subsampling) may be longer than the tensor.
            whole = int(tensor.sum())
            return (places - whole, places) if 0 <= whole <= places else None
    return None


def _is_mask(tensor: Any) -> bool:
    whole = not tensor.is_floating_point() and not tensor.is_complex()
    return bool(tensor.device.type == "cpu" and tensor.dim() == 2 and tensor.numel() and whole)


def _are_lengths(tensor: Any, padded: Any) -> bool:
    whole = tensor.device.type == "cpu" and tensor.dim() == 1 and not tensor.is_floating_point()
    return bool(whole and padded.dim() >= 2 and tensor.shape[0] == padded.shape[0] and padded.numel())
