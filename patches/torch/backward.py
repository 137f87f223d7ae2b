"""The one wrapper of ``torch.autograd.backward``: DDP raises two of its errors in there, and leaves no graph after it.

It is put on when the first model is wrapped by DDP, and looks at the outermost backward only: reentrant checkpoints
call backward within one.
"""

from __future__ import annotations

from typing import Any, Callable, List, Tuple

import torch

from ddpfix import log
from ddpfix.patching.site import Site

# ended(roots): called after each backward with the tensors that it was called for.
Ended = Callable[[Any], None]
# failed(error, roots): called with what a backward has raised.
Failed = Callable[[BaseException, Any], None]
_LOOKS: List[Tuple[Ended, Failed]] = []
# Whether a backward runs.
_RUNS = [False]


def look_at(site: Site, ended: Ended, failed: Failed) -> None:
    """Call these after each backward, until the site is undone."""
    if not site.records:
        site.wrap_hot(torch.autograd, "backward", _backward)
        site.at_undo(_LOOKS.clear)
    _LOOKS.append((ended, failed))


def forget(ended: Ended) -> None:
    """Do not call this any more."""
    _LOOKS[:] = [pair for pair in _LOOKS if pair[0] != ended]


def _backward(original: Callable[..., Any]) -> Callable[..., Any]:
    looks, runs = _LOOKS, _RUNS

    def backward(*args: Any, **kwargs: Any) -> Any:
        if runs[0] or not looks:
            return original(*args, **kwargs)
        runs[0] = True
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            _failed(error, args[0] if args else kwargs.get("tensors"))
            raise
        finally:
            runs[0] = False
        for ended, _ in looks:
            ended(args[0] if args else kwargs.get("tensors"))
        return result

    return backward


def _failed(error: BaseException, roots: Any) -> None:
    for _, failed in list(_LOOKS):
        try:
            failed(error, roots)
        except Exception as problem:
            log.debug(f"an error of a backward is left as it is: {problem!r}")
