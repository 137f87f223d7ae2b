"""The text that is added to an error of DDP; read when there is one, and never before."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any, List, Optional, Sequence, Tuple

from ddpfix.exchange import roll_call
from ddpfix.rules.finding import Finding
from ddpfix.rules.no_gradient import causes, names
from ddpfix.rules.no_gradient.causes import Cause, Cure, Seen
from ddpfix.rules.no_gradient.names import Group
from ddpfix.system import System

from ...common.lines import release
from ..internals import process_groups
from ..pipeline import ddp
from ..unused.finalize import impossible
from ..unused.states import REDUCTION
from .evidence import Evidence

_TWICE = re.compile(r"Parameter at index (\d+)(?: with name (\S+))? has been marked as ready twice")
# Modules that are frozen one by one.
_FROZEN = 4
_PREPARE = "model.reducer.prepare_for_backward([loss])"
_LATE = "or set DDPFIX_UNUSED=late"
_SUM = "(first_loss + second_loss).backward()"


def unfinished(case: Evidence, message: str) -> Finding:
    """On parameters without gradient ("Expected to have finished reduction")."""
    model = case.model
    missing = case.missing or case.all_missing(message)
    groups = names.collapsed(names_of(model, missing), model.names)
    others = Others(case, missing)
    count = "1 parameter" if len(missing) == 1 else f"{len(missing) or 'some'} parameters"
    head = f"{count} got no gradient on {others.here}{_step(case)}{others.say()}:"
    head += names.listed(groups) or " torch does not name them"
    reduction = REDUCTION.of(model)
    why = "" if reduction is None else reduction.backwards.explain()
    if why:
        # Not the flag: with it DDP ends at the second backward of a step.
        words = "call backward equally often in each step, or once, for the sum of the losses"
        return _found(causes.REPEATED, head, [why], [(words, [_SUM])])
    if getattr(model.wrapper, "static_graph", False):
        used = names.modules(groups)
        why = f"static_graph=True expects the same parameters in each step, and the first one used {used}"
        words = f"replace static_graph=True by find_unused_parameters=True, {_where(case.lines)}"
        return _found(causes.STATIC, head, [why], [(words, [case.lines.not_static])])
    if model.wrapper.find_unused_parameters:
        why = "find_unused_parameters=True is set, but DDP found them behind an output that is not part of the loss"
        words = "return only what the loss needs from the wrapped model, or add it to the loss"
        cure = (words, ["loss = loss + 0.0 * output.sum()"])
        return _found(causes.HIDDEN, head, [why], [cure])
    found = causes.judge([(group, _seen(case, group)) for group in groups])
    is_by_hand = case.is_inside and case.lines.is_plain
    cures = [_by_hand(case)] if is_by_hand else _of_unused(case, found, others)
    kind = found[0].finding.kind if found else causes.UNKNOWN
    return _found(kind, head, [cause.finding.cause for cause in found], cures)


def _seen(case: Evidence, group: Group) -> Seen:
    """Return what the step has shown of the parameters of a group."""
    model = case.model
    modules = dict(model.wrapper.module.named_modules())
    held = {id(module) for module in causes.holders(modules, group)}
    numbers = {number for number, name in enumerate(model.names) if name in group.names}
    output = next((name for name, behind in case.outside.items() if numbers <= behind), "")
    ran = None if case.ran is None else not held.isdisjoint(case.ran)
    ever = None if case.ran is None else not held.isdisjoint(case.ran_before)
    return Seen(case.steps, 0, ran, ever, output, causes.skips(modules, group))


def _of_unused(case: Evidence, found: Sequence[Cause], others: Others) -> List[Cure]:
    """Return how parameters without gradient are dealt with, at the lowest price first."""
    lines, kinds = case.lines, {cause.finding.kind for cause in found}
    first: List[Cure] = []
    if kinds == {causes.NEVER} and others.agree() and lines.own:
        groups = [group for cause in found for group in cause.groups]
        if len(groups) <= _FROZEN:
            frozen = [f"{names.attribute(group)}.requires_grad_(False)" for group in groups]
            first = [("freeze it before the model is wrapped, if no later step uses it (costs nothing)", frozen)]
    words = _where(lines) + _without_edit(case)
    if not case.hides:
        return [*first, (words, [lines.find])]
    both = [lines.find, lines.not_reentrant]
    return [*first, (f"{words}; DDP cannot see through reentrant checkpoints", list(dict.fromkeys(both)))]


def _by_hand(case: Evidence) -> Cure:
    """Return what helps where the program prepares DDP itself, within the forward of the wrapped module."""
    words = "the program prepares DDP inside the wrapped model's forward: paste both lines"
    if release("torch") >= (2, 1):
        words += _without_edit(case)
    return words, [case.lines.find, _PREPARE]


def _without_edit(case: Evidence) -> str:
    """Return the setting that does without an edit of the program; "" where it is on already, or would do nothing."""
    model = case.model
    kept = model.wrapper.find_unused_parameters and not model.flag_is_ours
    return "" if kept or REDUCTION.of(model) is not None or impossible(model.wrapper) else f" ({_LATE})"


def twice(case: Evidence, message: str, error: BaseException, roots: Any) -> Optional[Finding]:
    """On a parameter that was ready twice; None if it belongs to another model."""
    model = case.model
    named = _TWICE.search(message)
    number = int(named[1]) if named is not None else -1
    if not 0 <= number < len(model.names) or (named is not None and named[2] not in (None, model.names[number])):
        return None
    if number not in case.reached_by(roots) and not case.hides:
        return None
    others = Others(case, [number])
    why, cure = _why_twice(case, number, _backwards_within(error) > 1)
    head = f"{model.names[number]} was marked ready twice on {others.here}{_step(case)}{others.say()}"
    return _found(causes.TWICE, head, [why], [cure])


def _why_twice(case: Evidence, number: int, reentrant: bool) -> Tuple[str, Cure]:
    name, lines = case.model.names[number], case.lines
    flag, module = case.model.wrapper.find_unused_parameters, _module(case.model.names[number])
    if reentrant:
        why = f"two reentrant checkpoints use {module}, and each runs a backward"
        if flag:
            why = f"a reentrant checkpoint hides {module} from find_unused_parameters=True, so DDP considers it unused"
        return why, (f"non-reentrant checkpoints, {_where(lines)}", [lines.not_reentrant])
    without: Cure = (f"or without the flag, {_where(lines)}", [lines.do_not_find])
    if case.model.flag_is_ours:
        # The program has none to leave out.
        without = (_LATE, [])
    if flag and case.forwards > 1:
        why = f"{case.forwards} forwards before one backward, and find_unused_parameters=True searches the last one"
        return why, (f"run one forward for all inputs, {without[0]}", without[1])
    if flag and case.is_inside:
        why = "the program prepares DDP inside the wrapped model's forward without the loss: DDP considers all unused"
        return why, ("pass the loss where the program prepares DDP", [_PREPARE])
    if flag and number not in case.reached_by_outputs():
        why = f"the loss uses {name} outside the wrapped model's forward, so DDP considers it unused"
        return why, (f"use it inside that forward, {without[0]}", without[1])
    why = "two backwards of one step reach it"
    if case.backwards:
        why = f"backward {case.backwards + 1} of this step reaches it again"
    return why, (f"one backward for the sum of the losses{_without_edit(case)}", [_SUM])


def _step(case: Evidence) -> str:
    return f" in step {case.steps}" if case.steps else ""


def _module(name: str) -> str:
    return name.rpartition(".")[0] or name


def _where(lines: Any) -> str:
    return "paste this line" if lines.is_plain else f"in {lines.name}, paste this line"


def _backwards_within(error: BaseException) -> int:
    """Return how many backwards have led to an error: more than one if a checkpoint has begun another one."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if each.name == "backward"]
    return sum(Path(each.filename).parts[-3:] == ("torch", "autograd", "__init__.py") for each in frames)


def _found(kind: str, head: str, reasons: Sequence[str], cures: Sequence[Cure]) -> Finding:
    return causes.finding(kind, process_groups.own_rank(), head, reasons, cures)


class Others:
    """On how many ranks the same was found in the same step."""

    def __init__(self, case: Evidence, numbers: Sequence[int]) -> None:
        self.here = f"rank {process_groups.own_rank()}"
        case.number += 1
        size = len(process_groups.ranks_of(case.model.wrapper.process_group))
        name, own = f"{case.model.number}/{case.number}", System.json(sorted(numbers))
        # The other ranks may not have a model without a name.
        self._found = roll_call.compare(name, size, own) if case.model.number else None

    def agree(self) -> bool:
        """Return whether all ranks have found the same, as far as they can be asked."""
        return self._found is None or self._found.same == self._found.size

    def say(self) -> str:
        """On how many ranks it is the same."""
        if self._found is None:
            return ""
        same, size = self._found
        if same == size:
            return f", the same on all {size} ranks"
        return f", the same on {same} of {size} ranks" if same > 1 else ", not the same on all ranks"


def names_of(model: ddp.Wrapped, numbers: Sequence[int]) -> List[str]:
    """Return the names of some parameters."""
    return [model.names[number] for number in numbers if number < len(model.names)]
