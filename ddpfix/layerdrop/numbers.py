"""Follows the uniform numbers that a function draws through its local names, on its syntax tree.

A draw is known by the object that its name stands for (``torch.rand``, also as ``from torch import rand as draw``), not
by the name. It is still known after ``.item()``, ``float()`` and other conversions.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import random
import sys
from types import FunctionType, ModuleType
from typing import Any, Callable, Dict, FrozenSet, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

import torch

from ddpfix.layerdrop.source import constant, index_of, is_none, names_in, names_of, shape_of, stored

_MISSING = object()
# What is known of a tensor whatever is in it.
_FACTS = frozenset(("shape", "size", "ndim", "dim", "dtype", "device", "numel", "requires_grad", "is_cuda", "stride"))
# What a random number may be drawn with: only to tell what was not understood from what draws nothing.
DRAWS = frozenset(
    ("rand", "random", "random_sample", "uniform", "uniform_", "randint", "randn", "rand_like", "integers")
    + ("bernoulli", "bernoulli_", "binomial", "choice", "choices", "getrandbits")
    + ("sample", "shuffle", "permutation", "randperm", "multinomial")
)
_CONVERSIONS = frozenset(
    ("item", "to", "cpu", "cuda", "float", "double", "detach", "squeeze", "type_as", "tolist", "numpy")
)
_ARRAYS = (torch.empty, torch.zeros, torch.ones, torch.Tensor, torch.FloatTensor)


class Number(NamedTuple):
    """A number drawn uniformly from the unit interval.

    Attributes:
        is_vector: whether it is a vector with a number for each layer.
        generator: the expression of a generator that the module holds; empty for the global generators.
        draws: the calls that may have drawn it.
        is_entry: whether it is an entry of such a vector, drawn before the loop.
    """

    is_vector: bool
    generator: str
    draws: Tuple[ast.expr, ...]
    is_entry: bool = False


class Scope:
    """The names of one function: what is assigned to them, what the global ones stand for, which loop they are in.

    Args:
        outer: the names of its module, and what it has from functions around it.
    """

    def __init__(self, tree: ast.FunctionDef, outer: Dict[str, Any]) -> None:
        self.tree, self._outer = tree, outer
        arguments = tree.args
        first = [*getattr(arguments, "posonlyargs", ()), *arguments.args]
        self.module = first[0].arg if first else ""
        self.parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self.loops = [node for node in ast.walk(tree) if isinstance(node, ast.For)]
        # What is assigned to each local name; None where it is not the value of an expression of its own.
        self.values: Dict[str, List[Optional[ast.expr]]] = {}
        for node in ast.walk(tree):
            for name, value in stored(node, self.parents) if node is not tree else ():
                self.values.setdefault(name, []).append(value)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around one, the innermost first, without the definition itself."""
        while node in self.parents and self.parents[node] is not self.tree:
            node = self.parents[node]
            yield node

    def loop(self, node: ast.AST) -> Optional[ast.AST]:
        """Return the innermost loop or comprehension whose body has a node."""
        kinds = (ast.For, ast.While, ast.AsyncFor, ast.comprehension, ast.ListComp, ast.GeneratorExp)
        below = node
        for each in self.above(node):
            if isinstance(each, kinds) and below is not getattr(each, "iter", None):
                return each
            below = each
        return None

    def sources(self, *nodes: ast.AST, walk: Callable[[ast.AST], Iterable[ast.AST]] = ast.walk) -> Iterator[ast.AST]:
        """Yield the nodes of expressions, and of all that their local names are made of, each name once."""
        todo, seen = list(nodes), {self.module}
        while todo:
            for each in walk(todo.pop()):
                yield each
                if isinstance(each, ast.Name) and each.id not in seen:
                    seen.add(each.id)
                    todo += [value for value in self.values.get(each.id, ()) if value is not None]
                    todo += [loop.iter for loop in self.loops if each.id in names_in(loop.target)]

    def draws_in(self, *nodes: ast.AST) -> Set[ast.AST]:
        """Return the calls from which expressions have random numbers, certain or only by their names."""
        return {each for each in self.sources(*nodes, walk=_with_values) if self._looks_random(each)}

    def _looks_random(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return False
        known = getattr(self.object(node.func), "__name__", "")
        return known in DRAWS or (isinstance(node.func, ast.Attribute) and node.func.attr in DRAWS)

    def object(self, node: ast.AST) -> Any:
        """Return what a global name or an attribute of a module stands for."""
        if isinstance(node, ast.Name) and node.id not in self.values:
            return self._outer.get(node.id, getattr(builtins, node.id, _MISSING))
        if isinstance(node, ast.Attribute):
            module = self.object(node.value)
            return vars(module).get(node.attr, _MISSING) if isinstance(module, ModuleType) else _MISSING
        return _MISSING

    def path(self, node: ast.AST) -> Tuple[str, ...]:
        """Return the attributes by which an expression is read from the module; empty for any other expression."""
        names: List[str] = []
        while isinstance(node, ast.Attribute):
            names.insert(0, node.attr)
            node = node.value
        return tuple(names) if isinstance(node, ast.Name) and node.id == self.module else ()

    def holds(self, node: ast.AST) -> Optional[bool]:
        """Return what is known wherever layers are skipped: the module trains, and a rate that it holds is above 0."""
        if self.path(node) == ("training",):
            return True
        if (
            isinstance(node, ast.Compare)
            and self.path(node.left)
            and [constant(each) for each in node.comparators] == [0]
        ):
            return {ast.Gt: True, ast.NotEq: True, ast.Eq: False, ast.LtE: False}.get(type(node.ops[0]))
        return None

    def number(self, node: ast.AST, seen: FrozenSet[str] = frozenset()) -> Optional[Number]:
        """Return the uniform number that an expression gives; None where that is not certain."""
        if isinstance(node, ast.Call):
            converted: Optional[ast.expr] = None
            if isinstance(node.func, ast.Attribute) and node.func.attr in _CONVERSIONS:
                converted = node.func.value
            elif self.object(node.func) is float and len(node.args) == 1:
                converted = node.args[0]
            return self._drawn(node) or (None if converted is None else self.number(converted, seen))
        if isinstance(node, ast.Name) and node.id not in seen:
            return self._assigned(node.id, seen | {node.id})
        if isinstance(node, ast.Subscript):
            return self._entry(node, seen)
        if isinstance(node, ast.IfExp) and self.holds(node.test):
            return self.number(node.body, seen)
        return None

    def _assigned(self, name: str, seen: FrozenSet[str]) -> Optional[Number]:
        """Return the number of a local name, if all that is assigned to it is such a number (or None)."""
        given = [value for value in self.values.get(name, [None]) if not is_none(value)]
        numbers = [None if value is None else self.number(value, seen) for value in given]
        found = [number for number in numbers if number is not None]
        if len(found) < len(given) or len({number._replace(draws=()) for number in found}) != 1:
            return None
        return found[0]._replace(draws=tuple(draw for number in found for draw in number.draws))

    def _entry(self, node: ast.Subscript, seen: FrozenSet[str]) -> Optional[Number]:
        """Return one number of a vector that is drawn anew each time the loop begins; or the only one."""
        number, index, loop = self.number(node.value, seen), index_of(node), self.loop(node)
        if number is None or not number.is_vector:
            return number if number is not None and (isinstance(index, ast.Name) or constant(index) == 0) else None
        if not isinstance(loop, ast.For) or not self.counts(loop, index):
            return None
        is_fresh = all(self.loop(draw) is self.loop(loop) for draw in number.draws)
        return number._replace(is_vector=False, is_entry=True) if is_fresh else None

    def counts(self, loop: ast.For, index: ast.AST) -> bool:
        """Return whether an index is what a loop gives a name in each turn, and nothing else does."""
        is_given = isinstance(index, ast.Name) and index.id in names_in(loop.target)
        return is_given and len(self.values[index.id]) == 1  # type: ignore[attr-defined]

    def _drawn(self, node: ast.Call) -> Optional[Number]:
        """Return the number that a call draws itself."""
        function, known = node.func, self.object(node.func)
        bounds, sizes, keywords, generator = list(node.args[:0]), list(node.args), list(node.keywords), ""
        if isinstance(function, ast.Attribute) and function.attr == "uniform_" and isinstance(function.value, ast.Call):
            array = function.value
            if not any(self.object(array.func) is each for each in _ARRAYS):
                return None
            bounds, sizes, keywords = sizes, list(array.args), [*keywords, *array.keywords]
        elif any(known is each for each in (random.uniform, *_numpy("uniform"))):
            bounds, sizes = sizes[:2], sizes[2:]
        elif isinstance(function, ast.Attribute) and function.attr == "random" and self.path(function)[:-1]:
            generator = ".".join(self.path(function)[:-1])
        elif not any(known is each for each in (torch.rand, random.random, *_numpy("rand", "random", "random_sample"))):
            return None
        is_unit = all(constant(bound) == end for bound, end in zip(bounds, (0.0, 1.0)))
        shape = shape_of(sizes)
        if not is_unit or shape is None or not {word.arg for word in keywords} <= {"device", "dtype", "requires_grad"}:
            return None
        return Number(shape == "vector", generator, (node,))


def _with_values(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of an expression, without those of which only the shape, type or place counts."""
    yield node
    if isinstance(node, ast.Attribute) and node.attr in _FACTS:
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("len", "isinstance", "type"):
        return
    for child in ast.iter_child_nodes(node):
        yield from _with_values(child)


def outer_of(function: FunctionType) -> Dict[str, Any]:
    """Return what the names stand for that a function has from its module and from functions around it."""
    outer = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            outer[name] = cell.cell_contents
        except ValueError:
            # Its value comes later.
            continue
    return outer


def may_draw(function: FunctionType) -> bool:
    """Return whether a function names a draw at all, from its code alone: most do not, and are not read."""
    home = function.__globals__
    names = (*names_of(function.__code__), *function.__code__.co_freevars)
    return any(name in DRAWS or _is_draw(home.get(name)) for name in names)


def _is_draw(value: Any) -> bool:
    return inspect.isroutine(value) and getattr(value, "__name__", "") in DRAWS


def _numpy(*names: str) -> List[Any]:
    generators = getattr(sys.modules.get("numpy"), "random", None)
    return [getattr(generators, name) for name in names if hasattr(generators, name)]
