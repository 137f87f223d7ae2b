"""One model under observation: what each pass (a forward in training with its backward) called, and what got gradients.

Whether a gradient has arrived is learned where DDP learns it: at the node of the autograd graph that accumulates it.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

import torch

from ddpfix.layerdrop import cover
from ddpfix.models import graph, internals, wrap_hooks
from ddpfix.probing import facts
from ddpfix.probing.advice import advise
from ddpfix.probing.result import Checkpoint, Result, Skipping
from ddpfix.rules import unused
from ddpfix.rules.names import collapsed
from ddpfix.rules.names import modules as in_words
from ddpfix.rules.unused import Seen
from ddpfix.user_code import line

# DDP takes a parameter as ready also where autograd sends it no gradient. Before torch 2.1 that is how ddpfix finalizes
# reductions, so that it means nothing there in a model under DDP.
_UNDEFINED_COUNTS = internals.AT_ANY_TIME


class Subject:
    """What is known of one model, the module without the wrapper of DDP."""

    def __init__(self, model: Any, wrapper: Any = None) -> None:
        self.model, self.wrapper = model, wrapper
        self._undefined_counts = wrapper is None or _UNDEFINED_COUNTS
        self.modules: Dict[Any, str] = {module: name for name, module in model.named_modules()}
        self.parameters: List[Tuple[str, Any]] = list(model.named_parameters())
        self.passes, self.steps = 0, 0
        self.without: Counter[str] = Counter()
        self.called: Counter[Any] = Counter()
        self._behind: Counter[str] = Counter()
        self._hidden: Set[str] = set()
        self._twice: Set[str] = set()
        self._undefined: Set[int] = set()
        self._most: Counter[Any] = Counter()
        self._checkpointed: Dict[Any, bool] = {}
        self._nodes: Dict[int, Tuple[Any, Any]] = {}
        self._turns: Dict[Any, List[int]] = {}
        # Optimizer steps since DDP was last asked to average, of those so far; and where the program was then.
        self.unaveraged, self.place = 0, ""
        # Of the pass that is open, and whether its gradients are averaged.
        self._averages = self._has_returned = False
        self.is_open = False
        self.arrived: Counter[int] = Counter()
        self._expected: List[Tuple[str, Any]] = []
        self._reached: Optional[Set[int]] = None
        self._now: Counter[Any] = Counter()
        self._modes: Dict[Any, Set[bool]] = {}

    def begin(self) -> None:
        """A forward in training begins: of a new pass, if gradients have arrived since the last one began."""
        if self.is_open and self.arrived:
            self.close()
        if not self.is_open:
            self.is_open = True
            self._expected = [(name, p) for name, p in self.parameters if p.requires_grad]
            for _, parameter in self._expected:
                self._listen(parameter)

    def forward_begins(self, module: Any) -> None:
        """The outermost call of a training forward begins, of the wrapper or past it."""
        if module is self.wrapper and not module.require_backward_grad_sync:
            self.place = self.place or line(sys._getframe(1))
        else:
            self._averages = True

    def stepped(self) -> None:
        """An optimizer has stepped: on gradients of the passes since its last step."""
        # Lightning's manual optimization steps before the wrapper has returned, and has DDP average by itself.
        local = self.wrapper is not None and self._has_returned and not self._averages
        self.unaveraged = self.unaveraged + 1 if local else 0
        self._averages = self._has_returned = False
        self.steps += 1

    def call(self, module: Any, again: bool, first: bool) -> None:
        """A module of this model is called.

        Args:
            again: whether this is a recomputation in backward.
            first: whether no other module of this model is around the call.
        """
        if again:
            if first:
                self._checkpointed[module] = self._modes.get(module, {True}) == {False}
            return
        self._now[module] += 1
        self._modes.setdefault(module, set()).add(torch.is_grad_enabled())

    def returned(self, output: Any) -> None:
        """The output of a forward that no other module of this model is around."""
        self._has_returned = True
        roots = [tensor for tensor in graph.tensors_in(output) if tensor.requires_grad]
        if roots:
            leaves = map(id, (*roots, *graph.leaves(roots)))
            self._reached = {*leaves, *(self._reached or ())}

    def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self.passes += 1
        for name, parameter in self._expected:
            number = self.arrived[id(parameter)]
            found = self._reached is not None and id(parameter) in self._reached
            if number == 0:
                self.without[name] += 1
                self._behind[name] += int(found)
            elif self._reached is not None and not found:
                self._hidden.add(name)
            if number > 1:
                self._twice.add(name)
        for module, count in self._now.items():
            self.called[module] += 1
            self._most[module] = max(self._most[module], count)
        self._count_turns()
        self.arrived, self._reached = Counter(), None
        self._now, self._modes = Counter(), {}

    def end(self) -> None:
        """Listen to no gradient any more."""
        while self._nodes:
            self._nodes.popitem()[1][1].remove()

    def _listen(self, parameter: Any) -> None:
        """Be told when the gradient of a parameter is accumulated; moved to another device, it has another node."""
        try:
            (node,) = graph.accumulators([parameter])
        except (RuntimeError, AttributeError, IndexError):
            # A tensor of another kind (sharded, quantized): nothing is said of it.
            self._expected = [pair for pair in self._expected if pair[1] is not parameter]
            return
        known = self._nodes.get(id(parameter))
        if known is not None and known[0] is node:
            return
        if known is not None:
            known[1].remove()
        key = id(parameter)
        self._nodes[key] = (node, node.register_hook(lambda _, gradients: self._arrive(key, gradients)))

    def _arrive(self, key: int, gradients: Any) -> None:
        if gradients[0] is None:
            self._undefined.add(key)
        if self._undefined_counts or gradients[0] is not None:
            self.arrived[key] += 1

    def _count_turns(self) -> None:
        """Of each module that skips layers: how many of its layers could have run in this pass, and how many did."""
        for _, module, _ in cover.active(self.model):
            layers = _layers(module)
            if layers and (self._now[module] or isinstance(module, torch.nn.ModuleList)):
                turns = self._turns.setdefault(module, [0, 0])
                turns[0] += len(layers)
                turns[1] += sum(1 for layer in layers if self._now[layer])

    def result(self) -> Result:
        """Return the observations so far, with the advice."""
        frozen = sum(1 for _, parameter in self.parameters if not parameter.requires_grad)
        found = Result(type(self.model).__name__, trainable=len(self.parameters) - frozen, frozen=frozen)
        found.steps, found.passes = self.steps, self.passes
        if self.unaveraged == self.steps > 0:
            found.unaveraged = self.place
        found.always = [name for name, _ in self.parameters if self.without[name] == self.passes > 0]
        missing = {name: self.without[name] for name, _ in self.parameters if 0 < self.without[name] < self.passes}
        found.sometimes = missing
        found.outside = [name for name in (*found.always, *missing) if self._behind[name]]
        self._explain(found, {**dict.fromkeys(found.always, self.passes), **missing})
        found.skips = self._skips()
        found.reasons = wrap_hooks.reasons(self.model)
        found.checkpointing = [
            Checkpoint(self.modules.get(module, ""), type(module).__name__, reentrant)
            for module, reentrant in self._checkpointed.items()
        ]
        reentrant = any(self._checkpointed.values())
        found.hidden = [name for name, _ in self.parameters if reentrant and name in self._hidden]
        found.twice = [name for name, _ in self.parameters if reentrant and name in self._twice]
        empty = [name for name, parameter in self.parameters if id(parameter) in self._undefined]
        if empty and self._undefined_counts:
            found.notes.append(
                f"{in_words(collapsed(empty, self.trained()))}: used by a function that gives no gradient"
            )
        found.shared = shared(self.model)
        found.repeated = {
            self.modules[module]: most
            for module, most in self._most.items()
            if most > 1 and any(p.requires_grad for p in module.parameters(recurse=False))
        }
        advise(found, self.trained())
        return found

    def trained(self) -> List[str]:
        """Return the names of the parameters that train."""
        return [name for name, parameter in self.parameters if parameter.requires_grad]

    def _skips(self) -> List[Skipping]:
        found = []
        for name, module, rate in cover.active(self.model):
            turns = self._turns.get(module)
            seen = None if turns is None else 1 - turns[1] / turns[0]
            found.append(Skipping(name, type(module).__name__, float(rate), len(_layers(module)), seen))
        return found

    def _explain(self, found: Result, without: Mapping[str, int]) -> None:
        """Fill in why parameters got no gradient, and the modules that never ran."""
        outside = set(found.outside)
        modules = {name: module for module, name in self.modules.items()}
        alike: Dict[Tuple[int, bool], List[str]] = {}
        for name, missing in without.items():
            alike.setdefault((missing, name in outside), []).append(name)
        seen = []
        for (missing, is_outside), names in alike.items():
            for group in collapsed(names, self.trained()):
                times = max(self.called[module] for module in facts.holders(modules, group))
                ran = times == self.passes or times > 0 and missing == self.passes
                output, skips = "an output" if is_outside else "", facts.skips(modules, group)
                seen.append((group, Seen(self.passes, missing, ran, times > 0, output, skips)))
        for cause in unused.causes(seen):
            for group in cause.groups:
                found.why.update(dict.fromkeys(group.names, cause.finding.cause))
                if cause.finding.kind is unused.NEVER and group.whole and group.module:
                    found.never_ran.append(group.module)


def shared(model: Any) -> List[List[str]]:
    """Return the names of each parameter that has several."""
    names: Dict[int, List[str]] = {}
    seen: Set[Tuple[int, str]] = set()
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, parameter in internals.parameters_in(module).items():
            whole = f"{prefix}.{name}" if prefix else name
            if parameter is not None and (id(parameter), whole) not in seen:
                seen.add((id(parameter), whole))
                names.setdefault(id(parameter), []).append(whole)
    return [several for several in names.values() if len(several) > 1]


def _layers(module: Any) -> List[Any]:
    """Return the layers of a module that skips some of them; none for a layer that draws for itself."""
    if isinstance(module, torch.nn.ModuleList):
        return list(module.children())
    layers = getattr(module, "layers", None)
    if isinstance(layers, torch.nn.ModuleList):
        return list(layers.children())
    lists = [list(child.children()) for child in module.children() if isinstance(child, torch.nn.ModuleList)]
    return max(lists, key=len, default=[])
