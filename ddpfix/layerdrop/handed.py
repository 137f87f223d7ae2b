"""The layers that a loop hands to another method of its class: ``x = self.run(layer, x)``, where ``run`` draws."""

from __future__ import annotations

import ast
from types import FunctionType
from typing import FrozenSet, Iterator, NamedTuple, Optional

from ddpfix.layerdrop import loops, source
from ddpfix.layerdrop.numbers import Scope, names_of, outer_of
from ddpfix.patching.site import PatchError


class Given(NamedTuple):
    """A parameter that is a layer.

    Attributes:
        name: of the parameter.
        holders: the attributes of the module that hold the layers.
    """

    name: str
    holders: FrozenSet[str]


def layers(function: FunctionType, owner: type) -> Optional[Given]:
    """Return the parameter of a method for which all loops of its class that call it have a layer.

    Args:
        function: the method.
        owner: its class.
    """
    found = {given for caller in _callers(function, owner) for given in _given(function, caller)}
    return found.pop() if len(found) == 1 else None


def _callers(function: FunctionType, owner: type) -> Iterator[FunctionType]:
    """Yield the methods of a class that name a function, as far as no subclass in between has other ones."""
    own = [each for level in owner.__mro__ for each in vars(level).values()]
    for each in own:
        if type(each) is FunctionType and each is not function and function.__name__ in names_of(each.__code__):
            yield each


def _given(function: FunctionType, caller: FunctionType) -> Iterator[Given]:
    try:
        scope = Scope(source.tree_of(caller), outer_of(caller))
    except PatchError:
        return
    names = function.__code__.co_varnames[1 : function.__code__.co_argcount]
    for loop in loops.for_loops(scope):
        turns = loops.elements(scope, loop)
        for node in ast.walk(loop):
            if isinstance(node, ast.Call) and scope.path(node.func) == (function.__name__,):
                words = {word.arg: word.value for word in node.keywords if word.arg is not None}
                for name, value in {**dict(zip(names, node.args)), **words}.items():
                    if isinstance(value, ast.Name) and value.id in turns:
                        yield Given(name, loops.attributes(scope, [loop.iter]))
