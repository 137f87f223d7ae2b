"""What the README's test command leaves to ``nox -s later``, so that it takes minutes: ``pytest -m "not later"``.

A key is a file of tests, or ``file::function``, which goes before its file. The value is how many share one: of 4 every
fourth test is run by the README's command, the first one among them; of 0 none. No kind of promise is left out whole:
what stands for it is another test, or the first one.
"""

from __future__ import annotations

from collections import Counter
from typing import Dict, Iterable, Iterator, Tuple

LATER: Dict[str, int] = {}


def later(tests: Iterable[Tuple[str, str]]) -> Iterator[bool]:
    """Yield of each test whether it is left out.

    Args:
        tests: the file, below tests/ and without its suffix, and the function of each, in the order of collection.
    """
    seen: Dict[str, int] = Counter()
    for file, function in tests:
        key = f"{file}::{function}" if f"{file}::{function}" in LATER else file
        share = LATER.get(key, 1)
        yield not share or seen[key] % share != 0
        seen[key] += 1
