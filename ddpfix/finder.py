"""The import hook: tells the engine when a module that it waits for has finished importing.

The finder stands first on ``sys.meta_path`` and answers almost every question with one look-up in a set. For a module
that is waited for, it lets the other finders do their work and then hooks the one call that executes the module: the
loader and the spec stay the real ones, so ``runpy``, ``inspect`` and ``pkgutil`` see nothing of ours.
"""

from __future__ import annotations

import os
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Callable, Iterable, Optional, Sequence



def watched() -> frozenset[str]:
    """The import names of the toolkits in the matrix: the engine is loaded when the first of them is imported.

    Parsing the matrix costs more than a whole interpreter start, so only its block ``toolkits:`` is looked at, line by
    line. ``torch`` is always among them: a file that cannot be read is reported by the engine, which reads it properly.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    names = {"torch"}
    for folder in (here, os.path.dirname(here)):
        try:
            with open(os.path.join(folder, "compat_matrix.yaml"), encoding="utf-8") as file:
                names.update(_toolkits(file))
        except (OSError, ValueError):
            continue
        break
    return frozenset(names)


def _toolkits(lines: Iterable[str]) -> list[str]:
    found, inside = [], False
    for line in lines:
        if line[:1] not in " #\n":
            if inside:
                break
            inside = line.startswith("toolkits:")
        elif inside and ":" in line and not line.lstrip().startswith("#"):
            found.append(line.partition(":")[0].strip())
    return found


class Finder:
    """A meta path finder that calls ``imported(module)`` after each module of a watched package.

    ``wake`` is called once, before the first watched package is imported.
    """

    def __init__(self) -> None:
        self.watched = watched()
        self.wake: Optional[Callable[[], None]] = None
        self.wanted: Optional[Callable[[str], bool]] = None
        self.imported: Optional[Callable[[ModuleType], None]] = None
        self._lock = threading.RLock()
        self._busy = threading.local()

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        """Part of the finder protocol; returns None (the next finder's turn) for all that is not waited for."""
        if name.partition(".")[0] not in self.watched:
            return None
        self._wake()
        if self.wanted is None or not self.wanted(name) or name in self._names():
            return None
        self._names().add(name)
        try:
            spec = _spec_of_others(self, name, path, target)
        finally:
            self._names().discard(name)
        if spec is not None and spec.loader is not None and self.imported is not None:
            _hook(spec, self.imported)
        return spec

    def _names(self) -> set[str]:
        # The names being looked for on this thread: a finder may ask the import system for the same name again.
        names = getattr(self._busy, "names", None)
        if names is None:
            names = self._busy.names = set()
        return names  # type: ignore[no-any-return]

    def _wake(self) -> None:
        if self.wake is None:
            return
        with self._lock:
            wake, self.wake = self.wake, None
            if wake is not None:
                wake()


def _spec_of_others(
    finder: Finder, name: str, path: Optional[Sequence[str]], target: Optional[ModuleType]
) -> Optional[ModuleSpec]:
    for other in list(sys.meta_path):
        find = getattr(other, "find_spec", None)
        if other is finder or find is None:
            continue
        spec: Optional[ModuleSpec] = find(name, path, target)
        if spec is not None:
            return spec
    return None


def _hook(spec: ModuleSpec, imported: Callable[[ModuleType], None]) -> None:
    """Have ``imported(module)`` called once, after the loader has executed this module."""
    loader = spec.loader
    stock = getattr(loader, "exec_module", None)
    if stock is None:
        return

    def exec_module(module: ModuleType) -> None:
        # An instance attribute shadows the method for this one call, and is gone when the module's code runs.
        loader.__dict__.pop("exec_module", None)
        stock(module)
        imported(module)

    try:
        loader.exec_module = exec_module  # type: ignore[method-assign, union-attr]
    except AttributeError:
        # A loader that takes no attributes is left alone; the engine looks again when the next module is imported.
        return


_finder: Optional[Finder] = None


def install() -> Finder:
    """Put the finder on ``sys.meta_path`` (once a process) and return it; the engine wakes at the first import."""
    global _finder
    if _finder is None:
        _finder = Finder()
        _finder.wake = _wake_engine
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)  # type: ignore[arg-type]
    return _finder


def remove() -> None:
    """Take the finder off ``sys.meta_path``; a later :func:`install` starts afresh."""
    global _finder
    if _finder is not None and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)  # type: ignore[arg-type]
    _finder = None


def _wake_engine() -> None:
    # A failure here would fail the import of torch itself, so nothing may escape.
    try:
        from ddpfix import engine

        engine.wake()
    except Exception as error:
        sys.stderr and sys.stderr.write(f"ddpfix: not activated: {error}\n")
