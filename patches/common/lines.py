"""The lines with which the users of a toolkit change DDP's arguments, for the end of an error message.

Each toolkit's folder has them in a module ``lines``, as ``LINES``; they are read when an error is explained, and never
before.
"""

from __future__ import annotations

import sys
from typing import NamedTuple, Tuple


class Lines(NamedTuple):
    """The lines of one toolkit; "" where it has none, and the line for DDP itself is given.

    Attributes:
        callers: the beginnings of the names of the modules that wrap a model for it. A script counts as the module
            that its path spells (``wenet/bin/train.py``).
        find: has DDP look for unused parameters.
        do_not_find: has DDP look for none.
        not_static: leaves ``static_graph=True`` out, and has DDP look for unused parameters.
        not_reentrant: makes activation checkpointing non-reentrant.
        own: whether DDP gets the model as the user has it, so that a line of Python may name its parts.
    """

    name: str
    callers: Tuple[str, ...]
    find: str = ""
    do_not_find: str = ""
    not_static: str = ""
    not_reentrant: str = ""
    own: bool = False


def release(package: str) -> Tuple[int, ...]:
    """Return the numbers of the release of an imported package; () if it does not tell them."""
    text = str(getattr(sys.modules.get(package), "__version__", ""))
    numbers = text.split("+")[0].split(".")[:3]
    return tuple(int(number) for number in numbers if number.isdigit())
