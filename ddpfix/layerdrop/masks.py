"""Vectors of truths, drawn before a loop: ``keep = torch.rand(n) >= rate``, of which a layer has the entry ``keep[i]``.

In the analysis and in the copy of a forward each entry is read once, where the turn of the loop begins, under a name of
its own: there the shared truth can take its place. A vector that is changed, or that anything else has, is left alone.
"""

from __future__ import annotations

import ast
import copy
from typing import Any, Dict, List, Optional

from ddpfix.layerdrop.numbers import Number, Scope
from ddpfix.layerdrop.syntax import index_of, names_in

_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_CONVERSIONS = ("tolist", "cpu", "numpy", "bool", "detach")


def with_entries(tree: ast.FunctionDef, outer: Dict[str, Any]) -> Scope:
    """Return the scope of a definition, with the entries of such vectors read where their loop's turn begins."""
    scope = Scope(tree, outer)
    if not any(entries_in(scope, loop) for loop in _loops(tree)):
        return scope
    tree = copy.deepcopy(tree)
    scope = Scope(tree, outer)
    found: Dict[ast.AST, ast.Compare] = {}
    for number, loop in enumerate(_loops(tree)):
        for place, (text, nodes) in enumerate(sorted(entries_in(scope, loop).items())):
            name = f"_entry_{number}_{place}"
            compare = compared(scope, nodes[0])
            assert compare is not None
            _Replaced(nodes, name).visit(loop)
            value = ast.parse(text, mode="eval").body
            first: Any = ast.Assign(targets=[ast.Name(id=name, ctx=ast.Store())], value=value)
            for each in ast.walk(first):
                ast.copy_location(each, loop)
            loop.body.insert(0, ast.fix_missing_locations(first))
            found[value] = compare
    return Scope(tree, outer, found)


def _loops(tree: ast.AST) -> List[ast.For]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.For)]


def entries_in(scope: Scope, loop: ast.For) -> Dict[str, List[ast.AST]]:
    """Return the entries of such vectors in the body of a loop, by what they are: ``keep[i]``."""
    found: Dict[str, List[ast.AST]] = {}
    for statement in loop.body:
        for node in ast.walk(statement):
            is_read = isinstance(node, (ast.Subscript, ast.Name)) and isinstance(node.ctx, ast.Load)
            if is_read and scope.loop(node) is loop and compared(scope, node) is not None:
                found.setdefault(_text(node), []).append(node)
    return found


def _text(node: Any) -> str:
    return node.id if isinstance(node, ast.Name) else f"{node.value.id}[{index_of(node).id}]"


def compared(scope: Scope, node: ast.AST) -> Optional[ast.Compare]:
    """Return the comparison of a vector with a rate of which an expression is an entry: one a turn of its loop."""
    source: Optional[ast.expr] = None
    loop = scope.loop(node)
    if isinstance(node, ast.Name):
        source = scope.iterated(node.id)
    elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        index = index_of(node)
        is_counted = isinstance(loop, ast.For) and isinstance(index, ast.Name) and index.id in names_in(loop.target)
        source = node.value if is_counted and len(scope.values.get(index.id, ())) == 1 else None
    compare = None if source is None else _mask(scope, source)
    if compare is None or loop is None:
        return None
    number = drawn(scope, compare)
    return compare if number is not None and scope.is_fresh(number, loop) else None


def drawn(scope: Scope, compare: ast.Compare) -> Optional[Number]:
    """Return the vector of numbers in a comparison, or the list that it is an entry of."""
    numbers = [each for each in map(scope.number, (compare.left, compare.comparators[0])) if each is not None]
    made = next((each for each in scope.above(compare) if isinstance(each, ast.ListComp)), None)
    if len(numbers) != 1 or numbers[0].is_entry or numbers[0].is_vector != (made is None):
        return None
    return numbers[0] if made is None else numbers[0]._replace(is_vector=True, draws=(made,))


def _mask(scope: Scope, node: ast.AST) -> Optional[ast.Compare]:
    """Return the comparison whose results an expression is: of a vector, or of each number of a list."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CONVERSIONS:
        return None if node.args or node.keywords else _mask(scope, node.func.value)
    if isinstance(node, ast.Name):
        values = scope.values.get(node.id, [])
        is_plain = len(values) == 1 and values[0] is not None and _is_only_read(scope, node.id)
        return _mask(scope, values[0]) if is_plain and values[0] is not None else None
    if isinstance(node, ast.ListComp):
        if len(node.generators) > 1 or node.generators[0].ifs:
            return None
        node = node.elt
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            # What is certain wherever layers are skipped decides nothing.
            open_ones = [each for each in node.values if not scope.holds(each)]
            node = open_ones[0] if len(open_ones) == 1 else node
    is_order = isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], _ORDERS)
    return node if isinstance(node, ast.Compare) and is_order and drawn(scope, node) is not None else None


def _is_only_read(scope: Scope, name: str) -> bool:
    """Return whether nothing can change a vector: its entries are read, or a loop goes through it."""
    for node in ast.walk(scope.tree):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            above = scope.parents[node]
            is_entry = isinstance(above, ast.Subscript) and isinstance(above.ctx, ast.Load) and above.value is node
            is_zipped = isinstance(above, ast.Call) and scope.object(above.func) is zip
            is_listed = isinstance(above, ast.Attribute) and above.attr in _CONVERSIONS
            if not (is_entry or is_zipped or is_listed):
                return False
    return True


class _Replaced(ast.NodeTransformer):
    """Puts a name in the places of some nodes."""

    def __init__(self, nodes: List[ast.AST], name: str) -> None:
        self._nodes, self._name = {id(node) for node in nodes}, name

    def visit(self, node: ast.AST) -> Any:
        if id(node) in self._nodes:
            return ast.copy_location(ast.Name(id=self._name, ctx=ast.Load()), node)
        return self.generic_visit(node)
