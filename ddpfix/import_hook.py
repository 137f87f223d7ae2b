"""The import hook: calls back when a module that is waited for has finished importing.

The finder stands first on ``sys.meta_path`` and answers almost every call with one look-up in a set. For a module that
is waited for, it lets the other finders do their work and then hooks the one call that executes the module: the loader
and the spec stay the original ones, so ``runpy``, ``inspect`` and ``pkgutil`` see nothing of ours.
"""

from __future__ import annotations

# The module threading takes longer to import than all the rest of this file.
import _thread
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Callable, Optional, Sequence


class Finder:
    """A meta path finder that calls ``importing(module)`` before, ``imported(module)`` after each watched module.

    Args:
        watched: import names of top-level packages; nothing else is looked at.
        wake: called once, before the first of them is imported.
    """

    def __init__(self, watched: frozenset[str], wake: Optional[Callable[[], None]] = None) -> None:
        self.watched = watched
        self.wake = wake
        self.wanted: Optional[Callable[[str], bool]] = None
        self.importing: Optional[Callable[[ModuleType], None]] = None
        self.imported: Optional[Callable[[ModuleType], None]] = None
        # Names of the watched modules that are being executed, one for each time: the import system marks a module
        # that it executes, but not one that the program has its loader execute.
        self.running: list[str] = []
        self._lock = _thread.RLock()
        # Names that are being looked for, by thread: another finder may look the same name up again.
        self._busy: set[tuple[int, str]] = set()

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        """Part of the finder protocol; returns None (the next finder is called) for a module that is not waited for."""
        if name.partition(".")[0] not in self.watched:
            return None
        # Another thread waits here until the patches are armed: its toolkit would be imported unpatched otherwise. (An
        # import statement holds the import lock anyway, other callers of the finder may not.)
        with self._lock:
            wake, self.wake = self.wake, None
            if wake is not None:
                wake()
        busy = _thread.get_ident(), name
        if self.wanted is None or not self.wanted(name) or busy in self._busy:
            return None
        self._busy.add(busy)
        try:
            spec = _spec_of_others(self, name, path, target)
        finally:
            self._busy.discard(busy)
        if spec is not None and spec.loader is not None:
            self.hook(spec)
        return spec

    def hook(self, spec: ModuleSpec) -> None:
        """Have ``importing(module)`` called before the loader executes this module, and ``imported(module)`` after."""
        loader: Any = spec.loader
        # The zip loader of Python 3.8 and 3.9 knows only the older protocol.
        method = "exec_module" if hasattr(loader, "exec_module") else "load_module"
        original = getattr(loader, method, None)
        importing, imported = self.importing, self.imported
        if imported is None or original is None or isinstance(loader, type) or hasattr(original, "ddpfix"):
            return
        # A loader made for one module is left as it was when the module's code runs. One that serves many modules (a
        # zip file has a single loader) keeps the hook: the next module may be looked for before this one is executed.
        for_one_module = getattr(loader, "name", None) == spec.name

        def execute(subject: Any) -> Any:
            if for_one_module:
                vars(loader).pop(method, None)
            if importing is not None and not isinstance(subject, str):
                importing(subject)
            self.running.append(spec.name)
            try:
                result = original(subject)
            finally:
                self.running.remove(spec.name)
            imported(subject if result is None else result)
            return result

        execute.ddpfix = True  # type: ignore[attr-defined]
        try:
            # An attribute of the instance shadows the method.
            setattr(loader, method, execute)
        except AttributeError:
            # A loader that takes no attributes is left alone, and what waits for its module stays armed.
            return


def _spec_of_others(
    finder: Finder, name: str, path: Optional[Sequence[str]], target: Optional[ModuleType]
) -> Optional[ModuleSpec]:
    """Return the spec from the finders behind ours; the ones before it have been called already."""
    others: list[object] = list(sys.meta_path)
    for other in others[others.index(finder) + 1 if finder in others else 0 :]:
        find = getattr(other, "find_spec", None)
        if other is finder or find is None:
            continue
        spec: Optional[ModuleSpec] = find(name, path, target)
        if spec is not None:
            return spec
    return None


def of_another_copy() -> Optional[str]:
    """Return the file of another copy of ddpfix that is at work in this process; None where there is none.

    A path may lead to two copies (``PYTHONPATH`` and site-packages): the second one does nothing.
    """
    for each in sys.meta_path:
        kind = type(each)
        if (kind.__module__, kind.__qualname__) == (Finder.__module__, Finder.__qualname__) and kind is not Finder:
            return str(kind.find_spec.__code__.co_filename)
    return None


_finder: Optional[Finder] = None


def install(watched: frozenset[str], wake: Optional[Callable[[], None]] = None) -> Finder:
    """Put a :class:`Finder` on ``sys.meta_path``, once a process, and return it; one that is there stays as it is."""
    global _finder
    if _finder is None:
        _finder = Finder(watched, wake)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    return _finder


def is_running(name: str) -> bool:
    """Return whether the loader of a watched module executes it."""
    return _finder is not None and name in _finder.running


def remove() -> None:
    """Take the finder off ``sys.meta_path``; a later :func:`install` starts afresh."""
    global _finder
    if _finder is not None and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    _finder = None
