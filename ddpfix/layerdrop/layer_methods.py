"""The layers that a loop hands to another method of its class: ``x = self.run(layer, x)``, where ``run`` draws."""

from __future__ import annotations

import ast
from types import FunctionType
from typing import FrozenSet, Iterator, NamedTuple, Optional

from ddpfix.layerdrop import loops, source
from ddpfix.layerdrop.numbers import Scope, outer_of
from ddpfix.layerdrop.syntax import names_of
from ddpfix.patching.site import PatchError


class Given(NamedTuple):
    """A parameter that is a layer.

    Attributes:
        holders: the attributes of the module that hold the layers.
        is_always: whether no call of the method has anything else there.
    """

    name: str
    holders: FrozenSet[str]
    is_always: bool = True


def layers(function: FunctionType, owner: type) -> Optional[Given]:
    """Return the parameter of a method for which loops of its class have a layer."""
    found = {given for caller in _callers(function, owner) for given in _given(function, caller)}
    given = sorted(each for each in found if each is not None)
    return given[0]._replace(is_always=len(found) == 1) if given else None


def _callers(function: FunctionType, owner: type) -> Iterator[FunctionType]:
    """Yield the methods of a class that name a function, as far as no subclass in between has other ones."""
    own = [each for level in owner.__mro__ for each in vars(level).values()]
    for each in own:
        if type(each) is FunctionType and each is not function and function.__name__ in names_of(each.__code__):
            yield each


def _given(function: FunctionType, caller: FunctionType) -> Iterator[Optional[Given]]:
    """Yield what each call of the method is given: the layer of a loop's turn, or None."""
    try:
        scope = Scope(source.tree_of(caller), outer_of(caller))
    except PatchError:
        yield None
        return
    names = function.__code__.co_varnames[1 : function.__code__.co_argcount]
    for node in ast.walk(scope.tree):
        if isinstance(node, ast.Call) and scope.path(node.func) == (function.__name__,):
            loop = scope.loop(node)
            turns = loops.elements(scope, loop) if isinstance(loop, ast.For) else frozenset()
            words = {word.arg: word.value for word in node.keywords if word.arg is not None}
            given = {**dict(zip(names, node.args)), **words}
            found = [name for name, value in given.items() if isinstance(value, ast.Name) and value.id in turns]
            is_one = len(found) == 1 and isinstance(loop, ast.For)
            yield Given(found[0], loops.attributes(scope, [loop.iter])) if is_one else None  # type: ignore[union-attr]
