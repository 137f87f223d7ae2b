"""Asks the autograd engine which parameters the backward that runs now will reach."""

from __future__ import annotations

from typing import Any, Callable, List, Sequence, Set, Tuple

import torch

from ddpfix.models import graph
from ddpfix.models.internals import TASK

# Returns whether the backward that runs now comes to a node.
will_reach: Callable[[Any], bool] = torch._C._will_engine_execute_node
# Returns the node whose hooks run now.
_NODE: Callable[[], Any] = torch._C._current_autograd_node
# What a backward does with the parameters of a model.
REACHES = "reaches some"
LEAVES_ALONE = "is for something else"
# The whole graph runs, and no parameter of the model is in it, or a reentrant checkpoint hides it.
UNSEEN = "reaches none that can be seen"
UNSURE = "may be for something else"


class Engine:
    """What is known of the autograd engine of this process.

    Attributes:
        threads: those in which an outermost backward runs; empty outside of one.
        checkpoints: how many reentrant checkpoints have been made, by torch's own function.
    """

    def __init__(self) -> None:
        self.threads: Set[int] = set()
        self.checkpoints = 0


ENGINE = Engine()
# Whether the engine can be asked whether it runs.
TELLS = TASK is not None


class View:
    """Determines which parameters of one model, in DDP's order, a backward reaches."""

    def __init__(self, parameters: Sequence[Any], nodes: Sequence[Any]) -> None:
        self._parameters = parameters
        # Gradients come from the last parameter to the first, so this order finds a reached one soon.
        self._backwards: Tuple[Any, ...] = tuple(reversed(nodes))
        self._nodes: Sequence[Any] = nodes
        # A node that was reached the last time is likely to be reached again.
        self._last: Any = self._backwards[0]

    def release(self) -> None:
        """Drop the nodes, which keep their parameters."""
        self._nodes = self._backwards = ()
        self._last = None

    def effect(self) -> str:
        """REACHES, LEAVES_ALONE, UNSEEN or UNSURE; to be called within a backward.

        The engine knows only the graph of the backward that it runs: what a reentrant checkpoint hides is not in it.
        """
        try:
            if will_reach(self._last):
                return REACHES
            for node in self._backwards:
                if will_reach(node):
                    self._last = node
                    return REACHES
            if not any(parameter.requires_grad for parameter in self._parameters):
                return LEAVES_ALONE
            # Does the backward leave a part of its graph out (autograd.grad, backward(inputs=...))?
            node = _NODE()
            if node is None:
                return UNSURE
            return UNSEEN if all(map(will_reach, graph.behind((node,)))) else LEAVES_ALONE
        except RuntimeError:
            # torch.autograd.grad computes the gradients of leaves, and trains nothing.
            return LEAVES_ALONE

    def left_out(self) -> List[int]:
        """Return the numbers of the parameters that the backward will not reach, as far as it can be seen."""
        return [index for index, node in enumerate(self._nodes) if not will_reach(node)]


def may_hide_here() -> bool:
    """Return whether the graph behind the node whose hooks run now has custom functions, which may hide a graph."""
    node = _NODE()
    return node is None or any(_is_custom(each) for each in graph.behind((node,)))


def may_hide(outputs: Sequence[Any]) -> bool:
    """Return whether the graph of some tensors has custom functions, which may hide a graph."""
    return any(_is_custom(node) for node in graph.behind(tensor.grad_fn for tensor in outputs))


def _is_custom(node: Any) -> bool:
    return isinstance(node, torch.autograd.function.BackwardCFunction)


def hides_since(count: int) -> bool:
    """Return whether a reentrant checkpoint was made since there were ``count`` of them (:data:`ENGINE`)."""
    return ENGINE.checkpoints != count
