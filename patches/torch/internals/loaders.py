"""What a DataLoader and its iterators keep under names that are not public."""

from __future__ import annotations

from typing import Any


def begin_again(iterator: Any, loader: Any) -> None:
    """Have an iterator with persistent workers begin its loader's next pass."""
    iterator._reset(loader)


def another(loader: Any) -> Any:
    """Return an iterator of a loader, beside the one that it knows of."""
    return loader._get_iterator()
