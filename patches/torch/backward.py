"""The one wrapper of ``torch.autograd.backward``: DDP raises two of its errors in there, and leaves no graph after it.

It is put on when the first model is wrapped by DDP, and looks at the outermost backward only: reentrant checkpoints
call backward within one.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Callable, List

import torch

from ddpfix import log
from ddpfix.patching.site import Site

if TYPE_CHECKING:
    from .diagnosis import Case

# Those of models that are no more go by themselves.
Cases = List["weakref.ref[Case]"]
_KNOWN: Cases = []
# Those whose reductions may be left unfinished.
_LOOKING: Cases = []
# Whether a backward runs.
_RUNS = [False]


def look_at(site: Site, case: Case, looks: bool) -> None:
    """Tell a case of backwards, until the site is undone or the case is no more.

    Args:
        site: of the wrapper.
        case: of a model; its ``backward_failed(error, roots)`` is called with what a backward has raised.
        looks: whether its ``evidence.backward_ended(roots)`` is called after each backward.
    """
    if not site.records:
        site.wrap_hot(torch.autograd, "backward", _backward)
        site.at_undo(_KNOWN.clear)
        site.at_undo(_LOOKING.clear)
    for cases in (_KNOWN, _LOOKING) if looks else (_KNOWN,):
        cases.append(weakref.ref(case, cases.remove))


def forget(case: Case) -> None:
    """Do not tell this one any more."""
    for cases in (_KNOWN, _LOOKING):
        cases[:] = [each for each in cases if each() is not case]


def _backward(original: Callable[..., Any]) -> Callable[..., Any]:
    known, looking, runs = _KNOWN, _LOOKING, _RUNS

    def backward(*args: Any, **kwargs: Any) -> Any:
        if runs[0] or not known:
            return original(*args, **kwargs)
        runs[0] = True
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            _failed(error, args[0] if args else kwargs.get("tensors"))
            raise
        finally:
            runs[0] = False
        if looking:
            _ended(args[0] if args else kwargs.get("tensors"))
        return result

    return backward


def _ended(roots: Any) -> None:
    for reference in tuple(_LOOKING):
        case = reference()
        if case is not None:
            try:
                case.evidence.backward_ended(roots)
            except Exception as problem:
                forget(case)
                log.debug(f"backwards are not looked at any more: {problem!r}")


def _failed(error: BaseException, roots: Any) -> None:
    for reference in tuple(_KNOWN):
        case = reference()
        try:
            if case is not None:
                case.backward_failed(error, roots)
        except Exception as problem:
            log.debug(f"an error of a backward is left as it is: {problem!r}")
