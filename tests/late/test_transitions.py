"""The table of a reduction's transitions is whole: each action is there, and each state is reached and left."""

from __future__ import annotations

import pytest
from ddpfix.patches.torch.unused import states
from ddpfix.patches.torch.unused.finalizer import Finalizer
from ddpfix.patches.torch.unused.states import BEFORE, TRANSITIONS

pytestmark = pytest.mark.patches("torch.finalize")
STATES = {states.IDLE, states.ARMED, states.RUNNING, states.PENDING, states.FINALIZED, states.LOCAL}


def test_each_action_is_a_method_of_the_finalizer() -> None:
    actions = {action for action, _ in TRANSITIONS.values() if action}
    assert all(callable(getattr(Finalizer, action, None)) for action in actions)


def test_each_state_is_left_and_each_but_the_first_is_reached() -> None:
    assert {state for state, _ in TRANSITIONS} == STATES
    assert {after for _, after in TRANSITIONS.values()} - {BEFORE} == STATES


def test_the_state_is_changed_by_transitions_alone() -> None:
    """Beside the constructor and the wrapper's end."""
    import ast
    import inspect

    tree = ast.parse(inspect.getsource(inspect.getmodule(Finalizer)))  # type: ignore[arg-type]
    changes = [
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and node.attr == "state" and isinstance(node.ctx, ast.Store)
    ]
    assert changes == ["__init__", "on", "destroyed"]
