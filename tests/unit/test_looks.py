"""``looks.json`` knows how the places of torch look here, and a change of code is seen."""

from __future__ import annotations

import importlib
import linecache
from types import ModuleType

import pytest
import torch
from packaging.version import Version

from ddpfix.matrix import loader
from ddpfix.patching import looks
from tests.support.looks import newest, places

TORCH = Version(Version(torch.__version__).public)


def test_the_places_of_this_torch_are_known() -> None:
    matrix = loader.load()
    rows = list(newest(matrix, {"torch": TORCH}))
    if not rows:
        pytest.skip("torch of this version was not tested")
    wanted = {place for row in rows for place in places(row, [])}
    noted = {release for found in looks.known().values() for releases in found.values() for release in releases}
    if f"torch {TORCH}" not in noted:
        pytest.skip(f"run python -m tests.support.looks to note torch {TORCH}")
    unknown = [place for place in wanted if not _known(place)]
    assert unknown == [], "run: python -m tests.support.looks"


def _known(place: str) -> bool:
    name, _, attribute = place.partition(":")
    return looks.is_examined(importlib.import_module(name), attribute)


def test_formatting_and_docstrings_do_not_count_and_code_does() -> None:
    hashes = set()
    for text in ("def f(a):\n    return a + 1\n", 'def f(a: int) -> int:\n    """One."""\n    return (a\n      + 1)\n'):
        hashes.add(_hash(text))
    assert len(hashes) == 1 and None not in hashes
    assert _hash("def f(a):\n    return a + 2\n") not in hashes


def _hash(text: str) -> object:
    file = f"<looks {len(text)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    module = ModuleType("looked_at")
    exec(compile(text, file, "exec"), vars(module))
    return looks.of(module, "f")


def test_what_has_no_source_is_not_known() -> None:
    assert looks.of(torch, "zeros") is None and looks.of(torch, "nothing_of_that_name") is None
    assert not looks.is_examined(torch, "zeros")
