"""The text that is added to an error of DDP; read when there is one, and never before."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any, List, Sequence, Tuple

from ...common.lines import release
from ..unused.states import REDUCTION
from . import causes, parameter_groups, toolkit_lines
from .other_ranks import Case, Others, names_of

_TWICE = re.compile(r"Parameter at index (\d+)(?: with name (\S+))? has been marked as ready twice")
_LINE = "\n    "
# Modules that are frozen one by one.
_FROZEN = 4
_PREPARE = "model.reducer.prepare_for_backward([loss])"
# The setting that does without an edit of the program.
_WITHOUT_EDIT = "without an edit: DDPFIX_UNUSED=late"
# Words, and lines to paste.
Cure = Tuple[str, Sequence[str]]


def unfinished(case: Case, message: str) -> str:
    """On parameters without gradient ("Expected to have finished reduction")."""
    model, evidence = case.model, case.evidence
    missing = evidence.missing or evidence.all_missing(message)
    groups = parameter_groups.collapsed(names_of(model, missing), model.names)
    others = Others(case, missing)
    count = "1 parameter" if len(missing) == 1 else f"{len(missing) or 'some'} parameters"
    head = f"{count} got no gradient on {others.here}{_step(case)}{others.say()}:"
    head += parameter_groups.listed(groups) or " torch names none"
    reduction = REDUCTION.of(model)
    if reduction is not None:
        head += reduction.backwards.explain()
    if evidence.is_static:
        return head + _told([_no_more(case, groups), *others.disagree()], _not_static(case))
    if model.wrapper.find_unused_parameters:
        why = "find_unused_parameters=True is set: DDP found them behind an output that is not part of the loss"
        words = "return only what the loss needs from the wrapped model, or add it to the loss"
        return head + _told([why, *others.disagree()], [(words, ["loss = loss + 0.0 * output.sum()"])])
    found = causes.find(model, evidence, groups)
    if case.is_inside and toolkit_lines.is_plain(toolkit_lines.of(case.wrapped_by)):
        return head + _told([cause.text for cause in found] + others.disagree(), [_by_hand(case)])
    return head + _told([cause.text for cause in found] + others.disagree(), _of_unused(case, found, others))


def _of_unused(case: Case, found: Sequence[causes.Cause], others: Others) -> List[Cure]:
    """Return how parameters without gradient are dealt with, at the lowest price first."""
    lines, kinds = toolkit_lines.of(case.wrapped_by), {cause.kind for cause in found}
    first: List[Cure] = []
    if kinds == {causes.NEVER} and others.agree() and lines.own:
        groups = [group for cause in found for group in cause.groups]
        if len(groups) <= _FROZEN:
            frozen = [f"{parameter_groups.attribute(group)}.requires_grad_(False)" for group in groups]
            first = [("free of charge, before the model is wrapped, if no later step uses it", frozen)]
    if kinds == {causes.OUTSIDE}:
        first = [("free of charge: return only what the loss needs from the wrapped model", [])]
    words = f"{_where(lines)} ({_WITHOUT_EDIT})"
    if not case.evidence.hides:
        return [*first, (words, [lines.find])]
    both = [lines.find, lines.not_reentrant]
    return [*first, (f"{words}; DDP cannot look behind reentrant checkpoints", list(dict.fromkeys(both)))]


def _by_hand(case: Case) -> Cure:
    """Return what helps where the program prepares DDP itself, within the forward of the wrapped module."""
    words = "DDP is prepared within the forward of the wrapped model: paste both lines"
    if release("torch") >= (2, 1):
        words += f" ({_WITHOUT_EDIT})"
    return words, [toolkit_lines.of(case.wrapped_by).find, _PREPARE]


def _no_more(case: Case, groups: Sequence[parameter_groups.Group]) -> str:
    names = parameter_groups.modules(groups)
    why = f"static_graph=True expects the parameters of the first step in each step, and {names} was among them"
    return why + _rate(case, groups)


def _rate(case: Case, groups: Sequence[parameter_groups.Group]) -> str:
    rate = causes.skips_layers(case.model, case.evidence, groups)
    return f"; {rate}" if rate else ""


def _not_static(case: Case) -> List[Cure]:
    lines = toolkit_lines.of(case.wrapped_by)
    more = [lines.not_reentrant] if case.evidence.hides else []
    words = f"find_unused_parameters=True in place of static_graph=True, {_where(lines)}"
    return [(words, [lines.not_static, *more])]


def twice(case: Case, message: str, error: BaseException, roots: Any) -> str:
    """On a parameter that was ready twice; "" if it belongs to another model."""
    model, evidence = case.model, case.evidence
    named = _TWICE.search(message)
    number = int(named[1]) if named is not None else -1
    if not 0 <= number < len(model.names) or (named is not None and named[2] not in (None, model.names[number])):
        return ""
    if number not in evidence.reached_by(roots) and not evidence.hides:
        return ""
    others = Others(case, [number])
    why, cure = _why_twice(case, number, _backwards_within(error) > 1)
    head = f"{model.names[number]} was ready twice on {others.here}{_step(case)}{others.say()}"
    return head + _told([why, *others.disagree()], [cure])


def _why_twice(case: Case, number: int, reentrant: bool) -> Tuple[str, Cure]:
    name, evidence, lines = case.model.names[number], case.evidence, toolkit_lines.of(case.wrapped_by)
    flag, module = case.model.wrapper.find_unused_parameters, _module(case.model.names[number])
    if reentrant:
        why = f"{module} is used by two reentrant checkpoints, and each of them runs a backward of its own"
        if flag:
            why = f"a reentrant checkpoint hides {module} from find_unused_parameters=True, which takes it for unused"
        return why, (f"non-reentrant checkpoints, {_where(lines)}", [lines.not_reentrant])
    without = (f"or without the flag, {_where(lines)}", [lines.do_not_find])
    if flag and evidence.forwards > 1:
        why = f"{evidence.forwards} forwards before one backward: find_unused_parameters=True searches the last one"
        return why, (f"one forward for all inputs, {without[0]}", without[1])
    if flag and case.is_inside:
        why = "DDP was prepared within the forward of the wrapped model without its loss, and took all for unused"
        return why, ("give it the loss, in the place of the line that prepares DDP", [_PREPARE])
    if flag and number not in evidence.reached_by_outputs():
        why = f"the loss uses {name} outside of the forward of the wrapped model, where DDP has taken it for unused"
        return why, (f"use it within that forward, {without[0]}", without[1])
    why = "two backwards of one step reach it"
    if evidence.backwards:
        why = f"backward {evidence.backwards + 1} of this step reaches it, and so has an earlier one"
    words = f"one backward for the sum of the losses ({_WITHOUT_EDIT})"
    return why, (words, ["(first_loss + second_loss).backward()"])


def changed(case: Case, roots: Any) -> str:
    """On a parameter that a static graph did not have in its first step; "" if it belongs to another model."""
    model, evidence = case.model, case.evidence
    if not evidence.is_static or evidence.steps < 2:
        return ""
    reached = evidence.reached_by(roots)
    if not reached and not evidence.hides:
        return ""
    unused = [n for n, p in enumerate(model.parameters) if p.requires_grad and n not in evidence.first]
    new = [number for number in unused if evidence.hides or number in reached]
    groups = parameter_groups.collapsed(names_of(model, new), model.names)
    others = Others(case, new)
    where = f"{others.here}{_step(case)}{others.say()}"
    which = "of these at least one" if evidence.hides else f"{len(new)} parameters"
    head = f"{which} had no gradient in the first step, and one on {where}:"
    if not new:
        head = f"a parameter is used more often than in the first step, on {where}"
    names = parameter_groups.modules(groups) or "the graph"
    why = f"static_graph=True, and {names} is not used in the same way in each step{_rate(case, groups)}"
    return head + parameter_groups.listed(groups) + _told([why, *others.disagree()], _not_static(case))


def _step(case: Case) -> str:
    return f" in step {case.evidence.steps}" if case.evidence.steps else ""


def _module(name: str) -> str:
    return name.rpartition(".")[0] or name


def _where(lines: Any) -> str:
    return "paste this line" if toolkit_lines.is_plain(lines) else f"in {lines.name}, paste this line"


def _backwards_within(error: BaseException) -> int:
    """Return how many backwards have led to an error: more than one if a checkpoint has begun another one."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if each.name == "backward"]
    return sum(Path(each.filename).parts[-3:] == ("torch", "autograd", "__init__.py") for each in frames)


def _told(why: Sequence[str], cure: Sequence[Cure]) -> str:
    text = "".join(f"\nddpfix: cause: {each}" for each in why)
    for words, lines in cure:
        text += f"\nddpfix: cure: {words}{':' if lines else ''}" + "".join(_LINE + line for line in lines)
    return text
