"""Imports a toolkit as a training script does, and prints what ddpfix did meanwhile; run as a script by ``imports``.

With DDPFIX=1 the parts of our own work are timed where they happen. Without it, modules of others that we need are
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
from typing import Any, Callable, Dict, Iterator, List

_CLOCK = time.process_time
_NEEDED = {
    "import: standard library": ("difflib", "importlib.metadata", "inspect", "logging", "dataclasses", "pathlib"),
    "import: yaml": ("yaml",),
    "import: packaging": ("packaging.version",),
    "import: wrapt": ("wrapt",),
}
_parts: Dict[str, float] = {}
_inner: List[float] = []


@contextmanager
def part(name: str) -> Iterator[None]:
    """Count the time in here as this part's, less what inner parts count as theirs."""
    _inner.append(0.0)
    begun = _CLOCK()
    try:
        yield
    finally:
        spent = _CLOCK() - begun
        _parts[name] = _parts.get(name, 0.0) + spent - _inner.pop()
        if _inner:
            _inner[-1] += spent


def timed(owner: Any, attribute: str, name: str) -> None:
    """Count the time in a function as a part."""
    stock = getattr(owner, attribute)

    def call(*args: Any, **kwargs: Any) -> Any:
        with part(name):
            return stock(*args, **kwargs)

    setattr(owner, attribute, call)


def need() -> None:
    for name, modules in _NEEDED.items():
        with part(name):
            for module in modules:
                importlib.import_module(module)


def wake() -> None:
    """What the finder does at the first toolkit, with its parts timed."""
    need()
    # Here they may be what the toolkit imports next: the run without DDPFIX tells what they cost us.
    _parts.clear()
    with part("our modules"):
        from ddpfix import engine
        from ddpfix.matrix import detect, loader, resolve, settings
        from ddpfix.patching import site
    timed(loader, "load", "matrix: reading and checking it")
    timed(settings, "read", "settings")
    timed(detect, "installed_versions", "versions of the toolkits")
    timed(resolve, "resolve", "decisions")
    timed(engine, "_code", "patches: importing them")
    timed(site, "stale_copies", "patches: finding stale copies")
    timed(engine.Engine, "imported", "patches: putting them in place")
    with part("the rest of waking up"):
        engine.switch_on()


def ask_again(hook: Any) -> None:
    """The finder's questions, once more: timing each of them when it is asked would cost more than the answer."""
    names = [name for name in sys.modules if name.partition(".")[0] in hook.watched]
    wanted: Callable[[str], bool] = hook.wanted
    with part("a question for every module"):
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
        need()
    else:
        ask_again(hook)
    print(json.dumps({"whole": whole * 1000, "torch": torch * 1000, "parts": {n: s * 1000 for n, s in _parts.items()}}))


if __name__ == "__main__":
    main(sys.argv[1:])
