"""A method of a toolkit that draws for layers, and its copy, in which the comparisons ask the schedule."""

from __future__ import annotations

import functools
import inspect
from types import FunctionType
from typing import Any, Callable, Iterator, List, Optional

from ddpfix.layerdrop import call as calls
from ddpfix.layerdrop import code_copy, decisions, rates
from ddpfix.layerdrop.call import EXTENSIONS, Call
from ddpfix.layerdrop.code_copy import innermost
from ddpfix.layerdrop.drawing import applies
from ddpfix.patching.dynamo import skip_frames
from ddpfix.patching.site import PatchError

NO_TRAITS = code_copy.Traits()


class Covered:
    """A method that draws, and its copy that follows the schedule.

    Args:
        examined: whether it was examined; what is certain of any code is shared elsewhere.

    Raises:
        PatchError: it has another shape than expected.
    """

    def __init__(self, owner: type, method: str, traits: code_copy.Traits = NO_TRAITS, examined: bool = True) -> None:
        function = vars(owner)[method]
        inner = innermost(function)
        read = decisions.of(inner, owner)
        self.method = method
        # Other methods of the class that draw, and what ranks cannot share of all of them.
        self.others: List[Covered] = []
        self.refused = self.refusals(owner, method, read) if any(each.refusal for each in read.decisions) else []
        shared = code_copy.chosen(read, examined)
        if not shared:
            raise PatchError(self.refusals(owner, method, read)[0])
        self.paths = rates.paths(read)
        self.path = self.paths[0] if self.paths else ()
        self.rate = rates.reader(read, shared, inner)
        self.examined, self.decisions = examined, shared
        self.never = False
        self.choose: Callable[..., Optional[Call]] = lambda module, args, kwargs: None
        self.original = function
        self.generates = inspect.isgeneratorfunction(inner)
        copied = code_copy.scheduled(inner, traits, examined, owner)
        skip_frames(copied)
        self.scheduled = code_copy.rebuild(function, inner, self._called(_recorded(copied)))

    def _called(self, copied: FunctionType) -> FunctionType:
        """Return the copy, which finds its call by itself when a decorator runs it again (activation checkpointing)."""

        @functools.wraps(copied)
        def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            current = calls.CURRENT.get()
            if current is not None and current.method == self.method and current.module is module:
                return copied(module, *args, **kwargs)
            return self.answered(copied, self.choose(module, args, kwargs, self.method), module, args, kwargs)

        skip_frames(forward)
        return forward  # type: ignore[return-value]

    @staticmethod
    def refusals(owner: type, method: str, read: decisions.Found) -> List[str]:
        """Return why ranks cannot share decisions of a method, each with its line."""
        code = innermost(vars(owner)[method]).__code__
        found = [(each.refusal, getattr(each.node, "lineno", 0)) for each in read.decisions if each.refusal]
        return [f"{why} ({code.co_filename}:{line})" for why, line in found] or [f"{method} draws for a part of it"]

    def applies(self, module: Any, has_peers: bool) -> bool:
        """Return whether its decisions are about layers in this module."""
        return any(applies(each, module, has_peers or self.examined) for each in self.decisions)

    def answered(self, function: Any, call: Optional[Call], module: Any, args: Any, kwargs: Any) -> Any:
        """Run the function with the decisions of this call; with its own if there is none."""
        if call is None:
            return function(module, *args, **kwargs)
        if self.generates:
            return self._one_by_one(function(module, *args, **kwargs), call)
        token = calls.CURRENT.set(call)
        try:
            return function(module, *args, **kwargs)
        finally:
            calls.CURRENT.reset(token)
            call.ended()

    def _one_by_one(self, made: Iterator[Any], call: Call) -> Iterator[Any]:
        """Yield the values of a generator; between two of its steps, its call is not the current one."""
        try:
            while True:
                token = calls.CURRENT.set(call)
                try:
                    value = next(made)
                except StopIteration:
                    return
                finally:
                    calls.CURRENT.reset(token)
                yield value
        finally:
            call.ended()


def _recorded(copied: FunctionType) -> FunctionType:
    """Return the copied function with the extensions of patches around it."""

    @functools.wraps(copied)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = calls.CURRENT.get()
        begun = [(each, each.begins(self)) for each in EXTENSIONS] if EXTENSIONS else ()
        result = copied(self, *args, **kwargs)
        for each, state in begun:
            if state is not None and call is not None:
                each.ended(self, state, call)
        return result

    skip_frames(forward)
    return forward  # type: ignore[return-value]
