"""Completes the three errors of DDP: the parameters by name, on which ranks, the cause, and the line that cures it.

"Expected to have finished reduction" is raised at the next forward, "Expected to mark a variable ready only once" and
"Your training graph has changed" within a backward. torch's own message stays as it is, in front of the rest.
"""

from __future__ import annotations

import sys
import threading
import traceback
from types import ModuleType
from typing import Any, Optional, Tuple

from ddpfix import log
from ddpfix.models.identity import ByIdentity
from ddpfix.patching.site import Site
from ddpfix.rules.finding import Finding

from ..internals.wrapper import RUNS
from ..pipeline import backward, ddp
from ..unused.states import REDUCTION

UNFINISHED = "Expected to have finished reduction in the prior iteration"
TWICE = "Expected to mark a variable ready only once"
CHANGED = "training graph has changed in this iteration"
ERRORS = (UNFINISHED, TWICE, CHANGED)
_OURS = "\nddpfix: "
# The level of a line of the trace with names, cause and fix (docs/trace.md).
DIAGNOSIS = "diagnosis"


def reduction(site: Site, module: ModuleType, owner: Any) -> None:
    ddp.put(site, owner, Diagnosis(site))


class Diagnosis(ddp.Stage):
    """Collects evidence in the first steps of each model, and completes the errors."""

    place = "diagnosis"

    def __init__(self, site: Site) -> None:
        self._site, self._backwards = site, site.keep(backward.Backwards)
        self._cases: ByIdentity[Watched] = ByIdentity()

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        before = self._cases.get(model.wrapper)
        self.ended(model)
        case = self._cases[model.wrapper] = Watched(
            model, self._backwards, None if before is None else before.evidence.wrapped_by
        )
        if REDUCTION.of(model) is not None:
            # No reduction is left unfinished, so that no step is worth a look.
            model.attach(self.place, failed=case.forward_failed)
        else:
            model.attach(self.place, case.forward_begins, case.forward_ended, case.forward_failed)
        self._backwards.follow(self._site, self.place)
        self._backwards.look_at(case, looks=REDUCTION.of(model) is None)

    def ended(self, model: ddp.Wrapped) -> None:
        wrapper = model.wrapper
        # A model that is no more has taken its case along.
        case = None if wrapper is None else self._cases.pop(wrapper)
        if case is not None:
            case.end()


class Watched:
    """What is known of one model; what has wrapped it is what calls now, unless that was found before."""

    def __init__(
        self, model: ddp.Wrapped, backwards: backward.Backwards, wrapped_by: Optional[Tuple[str, ...]] = None
    ) -> None:
        fresh = f"{__package__}.evidence" not in sys.modules
        from ...common.lines import callers
        from .evidence import Evidence

        if fresh:
            ddp.untrace()
        self.model, self._backwards = model, backwards
        self.evidence = Evidence(model, callers() if wrapped_by is None else wrapped_by)
        # Backwards of this process before the last forward.
        self._count = 0

    def forward_begins(self) -> None:
        """A forward with gradients begins."""
        try:
            self.evidence.before()
            self._count = self._backwards.count
        except Exception as problem:
            self._give_up(problem)

    def forward_ended(self, output: Any) -> None:
        """A forward with gradients has ended."""
        try:
            self.evidence.after(output)
            self.evidence.is_inside = self._backwards.count > self._count
        except Exception as problem:
            self._give_up(problem)

    def _give_up(self, problem: Exception) -> None:
        log.debug(f"stopped observing the steps of a model: {problem!r}")
        self.end()
        self.model.detach(Diagnosis.place)

    def forward_failed(self, error: BaseException) -> None:
        """A forward has failed, perhaps because DDP has not finished the step before."""
        try:
            self.evidence.failed()
            if _is_torchs(error):
                self._complete(error, None)
        except Exception as problem:
            log.debug(f"an error of DDP could not be explained: {problem!r}")

    def backward_ended(self, roots: Any) -> None:
        """A backward has ended, perhaps that of another model."""
        self.evidence.backward_ended(roots)

    def backward_failed(self, error: BaseException, roots: Any) -> None:
        """A backward has failed, perhaps that of another model."""
        if _is_torchs(error) and self.model.wrapper is not None and self.model.thread == threading.get_ident():
            self._complete(error, roots)

    def _complete(self, error: BaseException, roots: Any) -> None:
        from ...common import lines
        from . import explanation

        message, case = str(error), self.evidence
        case.is_inside = case.is_inside or _is_inside(error)
        kind = next(each for each in ERRORS if each in message)
        if kind is UNFINISHED:
            found: Optional[Finding] = explanation.unfinished(case, message)
        elif kind is TWICE:
            found = explanation.twice(case, message, error, roots)
        else:
            found = explanation.changed(case, roots)
        if found is not None:
            text = found.note
            # Before the program has the error: it may be ended by its launcher before it comes to its own end.
            log.record(DIAGNOSIS, text, found.data())
            is_lightnings = case.lines.name == lines.LIGHTNING.name
            if not (is_lightnings and _add(error, text)):
                # In place: whoever catches it by its type, or looks at its traceback, finds what torch has raised.
                error.args = (f"{message}{_OURS}{text}",)

    def end(self) -> None:
        self._backwards.forget(self)
        self.evidence.stop()


def _add(error: BaseException, text: str) -> bool:
    """Say it below the message, which Lightning replaces by one of its own; return whether that is possible here."""
    add_note = getattr(error, "add_note", None)
    if add_note is None:
        # Before Python 3.11: Lightning from 2.1 on leaves no word of it.
        log.on_every_rank(text)
        return False
    add_note(f"{_OURS.strip()} {text}")
    return True


def _is_inside(error: BaseException) -> bool:
    """Return whether the wrapped module's own forward runs where an error was raised, or is caught."""
    raised = (frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__))
    around = (frame.f_code.co_name for frame, _ in traceback.walk_stack(sys._getframe()))
    return RUNS in raised or RUNS in around


def _is_torchs(error: BaseException) -> bool:
    message = str(error) if isinstance(error, RuntimeError) else ""
    return any(each in message for each in ERRORS) and _OURS not in message
