"""One module in several reentrant checkpoints of a step (siamese and preference losses), under DDP without the flag.

Each of these checkpoints runs a backward of its own, so that a parameter's gradient comes several times, and DDP raises
"Expected to mark a variable ready only once" (transformers issue 23801, trl issue 835). Here all but the last of these
backwards add to ``grad`` past DDP's hooks, and the last one brings the sum to DDP: as autograd does it without
checkpoints. Checkpoints are taken for the same where they call the same module, or method of a module with the same
arguments that are no tensors; others keep torch's error.
"""

from __future__ import annotations

import functools
import types
import weakref
from typing import Any, Callable, Dict, Hashable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import nn

from ddpfix.ranks.store import lowest_rank

from ..internals import autograd
from ..internals.tensors import child, has_hooks, parameters_in
from . import states
from .states import ARMED, RUNNING, Reduction

_PLAIN = (int, float, bool, str, type(None))


class Target(NamedTuple):
    """What a checkpoint runs: a module, and what distinguishes this call from others of it."""

    module: nn.Module
    key: Hashable


class _Use:
    """A checkpoint that waits for its backward.

    Args:
        node: of the graph.
    """

    def __init__(self, node: Any) -> None:
        self._node = weakref.ref(node)
        self.ran = False

    def reached(self, gradients: Any) -> None:
        self.ran = True

    def will_run(self) -> bool:
        """Return whether the backward that runs now comes to it; called within one."""
        node = self._node()
        return node is not None and not self.ran and autograd.will_reach(node)


_MOST_KEYS = 4096


class Repeated:
    """The reentrant checkpoints of one activation whose graphs are alive.

    Args:
        owner: the class ``CheckpointFunction``.
        reentrant: its own ``apply``.
    """

    def __init__(self, owner: Any, reentrant: Callable[..., Any]) -> None:
        self._owner, self._reentrant = owner, reentrant
        # By what is run.
        self._uses: Dict[Hashable, weakref.WeakSet[_Use]] = {}

    def call(self, function: Any, preserve: bool, args: Sequence[Any]) -> Any:
        """Run one, whose backward leaves DDP's hooks alone if another one of the same follows it.

        Args:
            function: what is checkpointed, with the arguments of ``apply``.
            preserve: as for ``checkpoint(preserve_rng_state)``.
            args: of the function.
        """
        target = _target(function, args) if torch.is_grad_enabled() and states.reductions() else None
        if target is None:
            return self._reentrant(function, preserve, *args)
        uses = self._uses.get(target.key)
        if uses is None or not any(not use.ran for use in uses):
            output = self._reentrant(function, preserve, *args)
        else:
            again: Any = super(self._owner, _again(self._owner))
            output = again.apply(Recomputed(function, target, uses), preserve, *args)
        self._note(target.key, output)
        return output

    def _note(self, key: Hashable, output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        tensors = [each for each in outputs if isinstance(each, torch.Tensor)]
        node = next((each.grad_fn for each in tensors if each.grad_fn is not None), None)
        if node is None:
            return
        if len(self._uses) >= _MOST_KEYS:
            self._uses.clear()
        use = _Use(node)
        # The graph alone keeps it alive.
        node.register_prehook(use.reached)
        self._uses.setdefault(key, weakref.WeakSet()).add(use)


class Recomputed:
    """What a checkpoint runs, and how its backward is run.

    Args:
        function: what is checkpointed.
        target: see :class:`Target`.
        uses: the checkpoints of the same.
    """

    def __init__(self, function: Callable[..., Any], target: Target, uses: weakref.WeakSet[_Use]) -> None:
        self._function, self._target, self._uses = function, target, uses

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def backward(self, run: Callable[[], Any]) -> Any:
        """Run the backward, with other leaves in the places of the module's parameters if one more will follow."""
        others = [use for use in self._uses if use.will_run()]
        if not others or not self._is_reduced():
            return run()
        lowest_rank.report("repeated_checkpoints", _SAID)
        stand_ins = _stand_ins(self._target.module)
        with _replaced(self._target.module, stand_ins):
            result = run()
        for parameter, stand_in in stand_ins:
            _add(parameter, stand_in.grad)
        return result

    def _is_reduced(self) -> bool:
        """Return whether DDP waits for these gradients, and knows the parameters one by one."""
        own = {id(parameter): parameter for parameter in self._target.module.parameters() if parameter.requires_grad}
        hooked = any(has_hooks(p) for p in own.values())
        plain = all(type(parameter) is nn.Parameter for parameter in own.values())
        return plain and not hooked and any(_waits_for(model, own) for model in states.reductions())


def _waits_for(model: Reduction, own: Dict[int, Any]) -> bool:
    armed = model.state is ARMED or model.state is RUNNING
    return armed and any(id(parameter) in own for parameter in model.parameters) and not model.is_static()


_SAID = (
    "a module is in several reentrant checkpoints of one step, which plain torch ends with 'Expected to mark a variable"
    " ready only once': their gradients are added before DDP averages them"
)


@functools.lru_cache(maxsize=None)
def _again(owner: Any) -> Any:
    class CheckpointFunctionAgain(owner):  # type: ignore[misc]
        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            recomputed: Recomputed = ctx.run_function
            return recomputed.backward(lambda: owner.backward(ctx, *gradients))

    return CheckpointFunctionAgain


def _stand_ins(module: nn.Module) -> List[Tuple[nn.Parameter, nn.Parameter]]:
    """Return each trained parameter of a module, and a leaf of its own with the same memory."""
    return [(each, nn.Parameter(each.detach())) for each in module.parameters() if each.requires_grad]


class _replaced:
    """Has stand-ins in the places of a module's parameters.

    Args:
        module: the module.
        stand_ins: of its parameters.
    """

    def __init__(self, module: nn.Module, stand_ins: List[Tuple[nn.Parameter, nn.Parameter]]) -> None:
        self._now = {id(parameter): stand_in for parameter, stand_in in stand_ins}
        self._module = module
        self._held: List[Tuple[Dict[str, Any], str, Any]] = []

    def __enter__(self) -> None:
        for module in self._module.modules():
            parameters = parameters_in(module)
            for name, parameter in list(parameters.items()):
                if id(parameter) in self._now:
                    self._held.append((parameters, name, parameter))
                    parameters[name] = self._now[id(parameter)]

    def __exit__(self, *error: Any) -> None:
        for parameters, name, parameter in self._held:
            parameters[name] = parameter


def _add(parameter: nn.Parameter, gradient: Optional[torch.Tensor]) -> None:
    """Add to a gradient as autograd does, without the hooks of the parameter."""
    if gradient is None:
        return
    if parameter.grad is None:
        parameter.grad = gradient
    else:
        with torch.no_grad():
            parameter.grad += gradient


def _target(function: Any, args: Sequence[Any]) -> Optional[Target]:
    """Return the target of a checkpoint; None where it is not certain."""
    given: List[Any] = list(args)
    named: List[Any] = []
    while isinstance(function, functools.partial):
        given, named = [*function.args, *given], [*named, *function.keywords.values()]
        function = function.func
    if given and isinstance(given[0], nn.Module) and isinstance(function, types.FunctionType):
        # A method that is not bound, as transformers 5 hands it over.
        function = types.MethodType(function, given.pop(0))
    found = called(function)
    others = tuple(each for each in (*given, *named) if not isinstance(each, torch.Tensor))
    if found is None or not all(isinstance(each, _PLAIN) for each in others):
        return None
    module, code = found
    return Target(module, (id(module), code, others))


def kind_of(function: Any) -> Hashable:
    """Return a key of a checkpoint's function, the same in each step although it may be made anew in each."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    values = [getattr(function, "__self__", None)]
    if isinstance(function, types.FunctionType):
        values += _cells(function)
    known = [each for each in values if isinstance(each, (nn.Module, *_PLAIN))]
    held = tuple(id(each) if isinstance(each, nn.Module) else each for each in known)
    return id(function) if code is None else code, held


def called(function: Any) -> Optional[Tuple[nn.Module, Any]]:
    """Return a module, and the code of the method of it that is called."""
    if isinstance(function, nn.Module):
        return function, None
    if isinstance(function, types.MethodType) and isinstance(function.__self__, nn.Module):
        whole = function.__name__ in ("__call__", "forward", "_wrapped_call_impl", "_call_impl")
        return function.__self__, None if whole else id(function.__func__)
    return _in_closure(function) if isinstance(function, types.FunctionType) else None


def _in_closure(function: types.FunctionType) -> Optional[Tuple[nn.Module, Any]]:
    """Return the one module that a small function around it calls (``lambda x: self.layer(x)``, ``custom_forward``)."""
    modules = [each for each in _cells(function) if isinstance(each, nn.Module)]
    if len(modules) != 1:
        return None
    names = function.__code__.co_names
    if not names:
        return modules[0], None
    part = child(modules[0], names[0]) if len(names) == 1 else None
    is_called = part is not None and not isinstance(part, (nn.ModuleList, nn.ModuleDict))
    return (part, None) if is_called and part is not None else None


def _cells(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            # It has no value yet.
            continue
