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
from typing import Any, Callable, Dict, FrozenSet, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch

from ddpfix.layerdrop.source import constant, index_of, is_none, is_unit_interval, names_in, names_of, shape_of, stored

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
        is_entry: whether it is an entry of such a vector, drawn before the loop.
        generator: the expression of a generator that the module holds; empty for the global generators.
        draws: the calls that may have drawn it.
    """

    is_vector: bool
    generator: str
    draws: Tuple[ast.expr, ...]
    is_entry: bool = False

    def entry(self) -> Number:
        """Return the number that one entry of a vector is."""
        return self._replace(is_vector=False, is_entry=True)


class Scope:
    """The names of one function: what is assigned to them, what the global ones stand for, which loop they are in.

    Args:
        outer: the names of its module, and what it has from functions around it.
    """

    def __init__(self, tree: ast.FunctionDef, outer: Dict[str, Any]) -> None:
        self.tree, self._outer = tree, outer
        # Calls of the program's own functions that draw: what they give is random, and nothing else is known of it.
        self.drawing: FrozenSet[ast.Call] = frozenset()
        arguments = tree.args
        first = [*getattr(arguments, "posonlyargs", ()), *arguments.args]
        self.module = first[0].arg if first else ""
        self.parents: Dict[ast.AST, ast.AST] = {}
        # What is assigned to each local name; None where it is not the value of an expression of its own.
        self.values: Dict[str, List[Optional[ast.expr]]] = {}
        for node in ast.walk(tree):
            self.parents.update((child, node) for child in ast.iter_child_nodes(node))
        # What the loops iterate over that give a name its value.
        self._iterated: Dict[str, List[ast.expr]] = {}
        for node in ast.walk(tree):
            for name, value in stored(node, self.parents) if node is not tree else ():
                self.values.setdefault(name, []).append(value)
            for name in names_in(node.target) if isinstance(node, ast.For) else ():
                self._iterated.setdefault(name, []).append(node.iter)  # type: ignore[attr-defined]
        # The calls that draw, and from which of them a name has something: a long forward asks for the same ones often.
        self._random: Dict[ast.Call, bool] = {}
        self._draws: Dict[str, Optional[ast.Call]] = {}

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
                    values = (*self.values.get(each.id, ()), *self._iterated.get(each.id, ()))
                    todo += [value for value in values if value is not None]

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

    def number(self, node: ast.AST, seen: FrozenSet[str] = frozenset()) -> Optional[Number]:
        """Return the uniform number that an expression gives; None where that is not certain."""
        if isinstance(node, ast.Call):
            return self._drawn(node) or self._converted(node, seen)
        if isinstance(node, ast.Name) and node.id not in seen:
            return self._assigned(node.id, seen | {node.id})
        if isinstance(node, ast.Subscript):
            return self._entry(node, seen)
        if isinstance(node, ast.IfExp) and self.holds(node.test):
            return self.number(node.body, seen)
        return None

    def holds(self, node: ast.AST) -> Optional[bool]:
        """Return what is known wherever layers are skipped: the module trains, and a rate that it holds is above 0."""
        if self.path(node) == ("training",):
            return True
        is_single = isinstance(node, ast.Compare) and len(node.ops) == 1
        if is_single and self.path(node.left) and constant(node.comparators[0]) == 0:  # type: ignore[attr-defined]
            operator = type(node.ops[0])  # type: ignore[attr-defined]
            return {ast.Gt: True, ast.NotEq: True, ast.Eq: False, ast.LtE: False}.get(operator)
        return None

    def _assigned(self, name: str, seen: FrozenSet[str]) -> Optional[Number]:
        """Return the number of a local name, if all that is assigned to it is such a number (or None)."""
        if name not in self.values or None in self.values[name]:
            return None
        given = [value for value in self.values[name] if not is_none(value)]
        numbers = [self.number(value, seen) for value in given if value is not None]
        first = numbers[0] if numbers else None
        if first is None or any(each is None or each._replace(draws=first.draws) != first for each in numbers):
            return None
        return first._replace(draws=tuple(draw for each in numbers if each is not None for draw in each.draws))

    def iterated(self, name: str) -> Optional[ast.expr]:
        """Return the expression of whose entries a name is one in each turn of its loop, and is given no other value.

        ``layer`` and ``rate`` of ``for index, (layer, rate) in enumerate(zip(self.layers, self.rates))`` are such.
        """
        loops = [node for node in ast.walk(self.tree) if isinstance(node, ast.For) and name in names_in(node.target)]
        if len(loops) != 1 or len(self.values.get(name, ())) != 1:
            return None
        return self._paired(loops[0].target, loops[0].iter, name)

    def _paired(self, target: ast.expr, source: ast.expr, name: str) -> Optional[ast.expr]:
        if isinstance(target, ast.Name):
            return source if target.id == name and not isinstance(source, ast.Starred) else None
        if not (isinstance(target, ast.Tuple) and isinstance(source, ast.Call) and not source.keywords):
            return None
        sources: List[Any] = []
        if self.object(source.func) is zip:
            sources = list(source.args)
        elif self.object(source.func) is enumerate and len(source.args) == 1:
            sources = [ast.Starred(value=source, ctx=ast.Load()), source.args[0]]
        pairs = zip(target.elts, sources) if len(sources) == len(target.elts) else ()
        return next((found for found in (self._paired(*pair, name) for pair in pairs) if found is not None), None)

    def is_fresh(self, number: Number, loop: ast.AST) -> bool:
        """Return whether a vector is drawn anew each time that a loop begins."""
        return all(self.loop(draw) is self.loop(loop) for draw in number.draws)

    def _converted(self, node: ast.Call, seen: FrozenSet[str]) -> Optional[Number]:
        if isinstance(node.func, ast.Attribute) and node.func.attr in _CONVERSIONS:
            return self.number(node.func.value, seen)
        if self.object(node.func) is float and len(node.args) == 1:
            return self.number(node.args[0], seen)
        return None

    def _entry(self, node: ast.Subscript, seen: FrozenSet[str]) -> Optional[Number]:
        """Return one number of a vector: by a name of the loop, or the only one."""
        number = self.number(node.value, seen)
        index = index_of(node)
        if number is None or not (isinstance(index, ast.Name) or (not number.is_vector and constant(index) == 0)):
            return None
        loop = self.loop(node)
        if not number.is_vector:
            return number
        is_counted = isinstance(loop, ast.For) and index.id in names_in(loop.target)
        if loop is None or not is_counted or len(self.values[index.id]) > 1:
            return None
        return number.entry() if self.is_fresh(number, loop) else None

    def _drawn(self, node: ast.Call) -> Optional[Number]:
        """Return the number that a call draws itself."""
        function, words = node.func, {word.arg: word.value for word in node.keywords}
        sizes, is_unit, generator = list(node.args), True, ""
        known = self.object(function)
        if isinstance(function, ast.Attribute) and function.attr == "uniform_" and isinstance(function.value, ast.Call):
            if not any(self.object(function.value.func) is each for each in _ARRAYS):
                return None
            is_unit, sizes = is_unit_interval(node.args, words, "from", "to"), list(function.value.args)
            words = {word.arg: word.value for word in function.value.keywords}
        elif known is torch.rand or any(known is each for each in _numpy("rand", "random", "random_sample")):
            pass
        elif known is random.random:
            is_unit = not sizes
        elif known is random.uniform or any(known is each for each in _numpy("uniform")):
            both = ("a", "b") if known is random.uniform else ("low", "high")
            is_unit, sizes = is_unit_interval(sizes[:2], words, *both), sizes[2:]
            words = {name: value for name, value in words.items() if name not in both}
        elif isinstance(function, ast.Attribute) and function.attr == "random" and self.path(function)[:-1]:
            generator = ".".join(self.path(function)[:-1])
        else:
            return None
        sizes += [words.pop(name) for name in ("size",) if name in words]
        shape = shape_of(sizes)
        if not is_unit or shape is None or not {*words} <= {"device", "dtype", "requires_grad"}:
            return None
        return Number(shape == "vector", generator, (node,))

    def draw_in(self, node: ast.AST) -> Optional[ast.Call]:
        """Return a call from which an expression has a random number, certain or only by its name."""
        for each in _with_values(node):
            found = each if isinstance(each, ast.Call) and self._is_random(each) else None
            if found is None and isinstance(each, ast.Name):
                found = self._draw_of(each.id)
            if found is not None:
                return found
        return None

    def has_one_of(self, node: ast.AST, draws: Sequence[ast.expr]) -> bool:
        """Return whether what an expression is made of has one of some draws in it."""
        wanted = set(map(id, draws))
        return any(id(each) in wanted for each in self.sources(node, walk=_with_values))

    def _draw_of(self, name: str) -> Optional[ast.Call]:
        """Return the call from which a local name has a random number."""
        if name not in self._draws:
            calls = (each for each in self.sources(ast.Name(id=name), walk=_with_values) if isinstance(each, ast.Call))
            self._draws[name] = next(filter(self._is_random, calls), None)
        return self._draws[name]

    def _is_random(self, call: ast.Call) -> bool:
        if call not in self._random:
            is_drawn = call in self.drawing or self.number(call) is not None
            self._random[call] = is_drawn or self._looks_random(call.func)
        return self._random[call]

    def _looks_random(self, function: ast.AST) -> bool:
        known = getattr(self.object(function), "__name__", "")
        return known in DRAWS or (isinstance(function, ast.Attribute) and function.attr in DRAWS)


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
