"""A method of a toolkit that draws for layers, and its copy, in which the comparisons ask the schedule."""

from __future__ import annotations

import functools
import inspect
from types import FunctionType
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

from ddpfix.layerdrop import code_copy, comparisons, shared_skips
from ddpfix.layerdrop.code_copy import innermost
from ddpfix.layerdrop.drawing_classes import applies
from ddpfix.layerdrop.shared_skips import EXTENSIONS, Call
from ddpfix.patching.dynamo import skip_frames
from ddpfix.patching.site import PatchError


class Skipping:
    """A method that leaves layers out.

    Args:
        rate: ``rate(module)`` gives the largest rate of a module.
        decided: its decisions; none where a patch leaves layers out by itself.
        examined: whether its code was examined; what is certain of any code is shared elsewhere.
    """

    def __init__(
        self,
        method: str,
        rate: Callable[[Any], float],
        decided: Sequence[comparisons.Decision] = (),
        examined: bool = False,
    ) -> None:
        self.method, self.rate, self.decisions, self.examined = method, rate, decided, examined
        # Whether it never skips (DDPFIX_LAYERDROP=off), and where its first rate is.
        self.never, self.path = False, next(iter(comparisons.paths(decided)), ())
        # Other methods of the class that draw, and what ranks cannot share of all of them.
        self.others: Sequence[Skipping] = ()
        self.refused: List[str] = []

    def applies(self, module: Any, has_peers: bool) -> bool:
        """Return whether its decisions are about layers in this module."""
        return not self.decisions or any(applies(each, module, has_peers or self.examined) for each in self.decisions)


class Covered(Skipping):
    """A method that draws, and its copy that follows the schedule.

    Raises:
        PatchError: it has another shape than expected.
    """

    def __init__(self, owner: type, method: str, checks: Tuple[str, ...] = (), examined: bool = True) -> None:
        function = vars(owner)[method]
        inner = innermost(function)
        found = comparisons.of(inner).decisions
        refused = [(each.refusal, each.node.lineno) for each in found if each.refusal]
        reasons = [f"{why} ({inner.__code__.co_filename}:{line})" for why, line in refused]
        shared = code_copy.chosen(found, examined)
        if not shared:
            raise PatchError(reasons[0] if reasons else f"{method} draws for a part of it")
        super().__init__(method, comparisons.reader(shared), shared, examined)
        self.refused = reasons
        self.path = next(iter(comparisons.paths(found)), ())
        self.choose: Callable[..., Optional[Call]] = lambda module, args, kwargs: None
        self.generates = inspect.isgeneratorfunction(inner)
        copied = code_copy.scheduled(inner, checks, examined)
        skip_frames(copied)
        self.scheduled = code_copy.rebuild(function, inner, self._called(copied))

    def _called(self, copied: FunctionType) -> FunctionType:
        """Return the copy with the extensions of patches around it."""

        def extended(module: Any, *args: Any, **kwargs: Any) -> Any:
            call = shared_skips.CURRENT.get()
            begun = [(each, each.begins(module)) for each in EXTENSIONS] if EXTENSIONS else ()
            result = copied(module, *args, **kwargs)
            for each, state in begun:
                if state is not None and call is not None:
                    each.ended(module, state, call)
            return result

        @functools.wraps(copied)
        def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            current = shared_skips.CURRENT.get()
            if current is not None and current.method == self.method and current.module is module:
                return extended(module, *args, **kwargs)
            # A decorator runs it again (activation checkpointing): it finds its call by itself.
            return self.answered(extended, self.choose(module, args, kwargs, self.method), module, args, kwargs)

        skip_frames(extended)
        skip_frames(forward)
        return forward  # type: ignore[return-value]

    def answered(self, function: Any, call: Optional[Call], module: Any, args: Any, kwargs: Any) -> Any:
        """Run the function with the decisions of this call; with its own if there is none."""
        if call is None:
            return function(module, *args, **kwargs)
        if self.generates:
            return self._one_by_one(function(module, *args, **kwargs), call)
        token = shared_skips.CURRENT.set(call)
        try:
            return function(module, *args, **kwargs)
        finally:
            shared_skips.CURRENT.reset(token)
            call.ended()

    def _one_by_one(self, made: Iterator[Any], call: Call) -> Iterator[Any]:
        """Yield the values of a generator; between two of its steps, its call is not the current one."""
        try:
            while True:
                token = shared_skips.CURRENT.set(call)
                try:
                    value = next(made)
                except StopIteration:
                    return
                finally:
                    shared_skips.CURRENT.reset(token)
                yield value
        finally:
            call.ended()


skip_frames(Covered.answered)
