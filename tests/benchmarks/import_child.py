"""Imports a toolkit as a training script does, and prints what ddpfix did meanwhile; run as a script by ``starts``.

With DDPFIX=1 our own work is timed where it happens. Without it, modules of others that we need are
imported after the toolkit: many are there already, so this is what they cost us and not the toolkit.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List

_CLOCK = time.process_time
# What of others ddpfix needs.
_NEEDED = (
    "difflib",
    "importlib.metadata",
    "inspect",
    "logging",
    "dataclasses",
    "pathlib",
    "packaging.version",
)
_spent = [0.0]
_open: List[float] = []


@contextmanager
def ours() -> Iterator[None]:
    """Count the time in here as ddpfix's, where calls are nested once."""
    _open.append(_CLOCK())
    try:
        yield
    finally:
        begun = _open.pop()
        _spent[0] += 0.0 if _open else _CLOCK() - begun


def need() -> None:
    for module in _NEEDED:
        importlib.import_module(module)


def wake() -> None:
    """What the finder does at the first toolkit."""
    # Here these may be what the toolkit imports next: the run without DDPFIX tells what they cost us.
    need()
    with ours():
        from ddpfix import engine

        engine.switch_on()
    stock: Callable[..., Any] = engine.Engine.imported

    def imported(*args: Any) -> Any:
        with ours():
            return stock(*args)

    engine.Engine.imported = imported  # type: ignore[assignment, method-assign]


def ask_again(hook: Any) -> None:
    """The finder's questions, once more: timing each of them when it is asked would cost more than the answer."""
    names = [name for name in sys.modules if name.partition(".")[0] in hook.watched]
    wanted: Callable[[str], bool] = hook.wanted
    with ours():
        for name in names:
            wanted(name)


def main(modules: List[str]) -> None:
    # The collector comes when enough has been made, whoever made it: its 90 ms would fall to one part or another, or
    # to neither process, by chance.
    gc.disable()
    hook = None
    if "DDPFIX" in os.environ:
        from ddpfix import _boot, import_hook

        hook = import_hook.install(_boot.watched(), wake)
        hook.wake = wake
    begun = _CLOCK()
    importlib.import_module("torch")
    torch = _CLOCK() - begun
    for module in modules:
        importlib.import_module(module)
    # The clock began with the process, so this is the interpreter's start too.
    whole = _CLOCK()
    if hook is None:
        with ours():
            need()
    else:
        ask_again(hook)
    print(json.dumps({"whole": whole * 1000, "torch": torch * 1000, "own": _spent[0] * 1000}))


if __name__ == "__main__":
    main(sys.argv[1:])
