"""Completes two errors of DDP: the parameters by name, on which ranks, the cause, and the line that cures it.

"Expected to have finished reduction" is raised at the next forward, "Expected to mark a variable ready only once"
within a backward. torch's own message stays as it is, in front of the rest.
"""

from __future__ import annotations

import sys
import traceback
from types import ModuleType
from typing import Any, Optional

from ddpfix import log
from ddpfix.models.identity import ByIdentity
from ddpfix.patching.site import Site

from ..internals.wrapper import RUNS
from ..pipeline import backward, ddp
from ..unused.states import REDUCTION

# The level of a line of the trace with names, cause and fix (docs/trace.md).
DIAGNOSIS = "diagnosis"


def reduction(site: Site, module: ModuleType, owner: Any) -> None:
    ddp.put(site, owner, Diagnosis(site))


class Diagnosis(ddp.Stage):
    """Collects evidence in the first steps of each model, and completes the errors."""

    place = DIAGNOSIS

    def __init__(self, site: Site) -> None:
        self._site, self._backwards = site, site.keep(backward.Backwards)
        # The evidence on each model.
        self._cases: ByIdentity[Any] = ByIdentity()

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        fresh = f"{__package__}.evidence" not in sys.modules
        from ...common.lines import callers
        from .evidence import Evidence

        if fresh:
            ddp.untrace()
        before = self._cases.get(model.wrapper)
        self.ended(model)
        # What has wrapped it is what calls now, unless that was found before.
        wrapped_by = callers() if before is None else before.wrapped_by
        case = self._cases[model.wrapper] = Evidence(model, self._backwards, wrapped_by, _complete)
        # Where reductions are finalized none is left unfinished, so that no step is worth a look.
        looks = REDUCTION.of(model) is None
        begins, ended = (case.forward_begins, case.forward_ended) if looks else (None, None)
        model.attach(self.place, begins, ended, case.forward_failed)
        self._backwards.follow(self._site, self.place)
        self._backwards.look_at(case, looks)

    def ended(self, model: ddp.Wrapped) -> None:
        wrapper = model.wrapper
        # A model that is no more has taken its case along.
        case = None if wrapper is None else self._cases.pop(wrapper)
        if case is not None:
            case.end()


def _complete(case: Any, error: BaseException, roots: Any) -> None:
    """Complete an error of torch's by what is known of the model: a forward's, or a backward's of ``roots``."""
    from ...common import lines
    from . import evidence, explanation

    message = str(error)
    case.is_inside = case.is_inside or _is_inside(error)
    if evidence.UNFINISHED in message:
        text = explanation.unfinished(case, message)
    else:
        found = explanation.twice(case, message, error, roots)
        if found is None:
            return
        text = found
    # Before the program has the error: it may be ended by its launcher before it comes to its own end.
    log.record(DIAGNOSIS, text.note, text.data())
    ours = f"{evidence.OURS}{text.note}"
    # Below the message, which Lightning replaces by one of its own.
    if case.lines.name == lines.LIGHTNING.name:
        if hasattr(error, "add_note"):
            error.add_note(ours.strip())
            return
        # Before Python 3.11: Lightning from 2.1 on leaves no word of it.
        log.on_every_rank(text.note)
    # In place: whoever catches it by its type, or looks at its traceback, finds what torch has raised.
    error.args = (f"{message}{ours}",)


def _is_inside(error: BaseException) -> bool:
    """Return whether the wrapped module's own forward runs where an error was raised, or is caught."""
    raised = (frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__))
    around = (frame.f_code.co_name for frame, _ in traceback.walk_stack(sys._getframe()))
    return RUNS in raised or RUNS in around
