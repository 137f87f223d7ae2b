"""One model under observation: what each pass (a forward in training with its backward) called, and what got gradients.

Whether a gradient has arrived is learned where DDP learns it: at the node of the autograd graph that accumulates it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

import torch

from ddpfix.layerdrop import cover
from ddpfix.models import graph, internals
from ddpfix.probing.result import Result
from ddpfix.rules.no_gradient import causes
from ddpfix.rules.no_gradient.causes import Seen
from ddpfix.rules.no_gradient.names import collapsed

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
        self._checkpointed: Dict[Any, bool] = {}
        self._nodes: Dict[int, Tuple[Any, Any]] = {}
        # Of the pass that is open.
        self.is_open = False
        self.arrived: Counter[int] = Counter()
        self._expected: List[Tuple[str, Any]] = []
        self._reached: Optional[Set[int]] = None
        # The modules that were called in it, and whether gradients were enabled.
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
        self._modes.setdefault(module, set()).add(torch.is_grad_enabled())

    def returned(self, output: Any) -> None:
        """The output of a forward that no other module of this model is around."""
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
        self.called.update(self._modes.keys())
        self.arrived, self._reached = Counter(), None
        self._modes = {}

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
        if self._undefined_counts or gradients[0] is not None:
            self.arrived[key] += 1

    def result(self) -> Result:
        """Return the observations so far, with the advice."""
        wrapper, reentrant = self.wrapper, any(self._checkpointed.values())
        found = Result(type(self.model).__name__, self.steps, self.passes, under="not under DDP")
        found.trainable = len(self.trained())
        found.frozen = len(self.parameters) - found.trainable
        if wrapper is not None:
            static = ", static_graph=True" if getattr(wrapper, "static_graph", False) else ""
            found.under = f"under DDP with find_unused_parameters={wrapper.find_unused_parameters}{static}"
        missing = {name: self.without[name] for name, _ in self.parameters if self.without[name]}
        found.always = [name for name, count in missing.items() if count == self.passes]
        found.sometimes = {name: count for name, count in missing.items() if count < self.passes}
        found.outside = [name for name in (*found.always, *found.sometimes) if self._behind[name]]
        self._explain(found, {**dict.fromkeys(found.always, self.passes), **found.sometimes})
        found.skips = [
            {"name": name, "kind": type(module).__name__, "rate": float(rate)}
            for name, module, rate in cover.active(self.model)
        ]
        found.checkpointing = [
            {"name": self.modules.get(module, ""), "kind": type(module).__name__, "reentrant": is_reentrant}
            for module, is_reentrant in self._checkpointed.items()
        ]
        found.hidden = [name for name, _ in self.parameters if reentrant and name in self._hidden]
        found.twice = [name for name, _ in self.parameters if reentrant and name in self._twice]
        found.advise(self.trained())
        return found

    def trained(self) -> List[str]:
        """Return the names of the parameters that train."""
        return [name for name, parameter in self.parameters if parameter.requires_grad]

    def _explain(self, found: Result, without: Mapping[str, int]) -> None:
        """Fill in why parameters got no gradient."""
        outside = set(found.outside)
        modules = {name: module for module, name in self.modules.items()}
        alike: Dict[Tuple[int, bool], List[str]] = {}
        for name, missing in without.items():
            alike.setdefault((missing, name in outside), []).append(name)
        seen = []
        for (missing, is_outside), names in alike.items():
            for group in collapsed(names, self.trained()):
                times = max(self.called[module] for module in causes.holders(modules, group))
                ran = times == self.passes or times > 0 and missing == self.passes
                output, skips = "an output" if is_outside else "", causes.skips(modules, group)
                seen.append((group, Seen(self.passes, missing, ran, times > 0, output, skips)))
        for cause in causes.judge(seen):
            for group in cause.groups:
                found.why.update(dict.fromkeys(group.names, cause.finding.cause))
