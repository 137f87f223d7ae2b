"""One model under DDP in a trace: the names that rows refer to, and what each forward and step adds to the row."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from ddpfix.layerdrop import cover, training
from ddpfix.models import internals

from ..internals.wrapper import inner
from ..pipeline import ddp
from ..unused.skipped_layers import layers_of
from ..unused.states import REDUCTION
from .step_row import StepRow

_HOST = torch.device("cpu")


class Traced:
    """What a trace has of one model.

    Args:
        recorder: the ``Recorder`` of this process, which takes the measurements.
        first_layer: the number of its first layer in rows; the layers of all models are numbered one after the other.
        first_parameter: the same for parameters.
    """

    def __init__(self, recorder: Any, model: ddp.Wrapped, first_layer: int, first_parameter: int) -> None:
        self._recorder, self._model = recorder, model
        self.first_layer, self.first_parameter = first_layer, first_parameter
        self._numbers: Dict[Tuple[str, int], int] = {}
        self.layers: List[str] = []
        modules = self._name_layers()
        # LayerDrop as it is shipped draws for itself, so that only the calls of the layers tell what it skipped.
        self._calls = LayerCalls(modules) if recorder.stock_layerdrop and modules else None
        # Where it is trained, whatever device is the current one.
        self.device = next((each.device for each in model.parameters), _HOST)
        # Whether a forward has run since the last step.
        self._has_run = False
        # Whether gradients of an earlier step were there when the first backward of this one began.
        self._kept = False
        self._seen: Optional[training.Step] = None

    def _name_layers(self) -> List[Any]:
        """Number the layers; returns their modules."""
        modules = []
        module = inner(self._model.wrapper)
        names = {id(part): name for name, part in internals.named_modules(module)}
        replica = ddp.replica(self._model)
        for name, holder, _ in cover.active(module):
            shown = name if replica is None else replica.key(holder)[0]
            for place, layer in layers_of(shown, holder):
                if place not in self._numbers:
                    self._numbers[place] = len(self.layers)
                    self.layers.append(names.get(id(layer), f"{place[0]}.{place[1]}"))
                    modules.append(layer)
        return modules

    def is_alive(self) -> bool:
        return self._model.wrapper is not None

    def line(self) -> Dict[str, Any]:
        """Return the values of the ``model`` line."""
        return {
            "class": type(inner(self._model.wrapper)).__name__,
            "layers": self.layers,
            "first_layer": self.first_layer,
            "parameters": self._model.names,
            "first_parameter": self.first_parameter,
        }

    def begin(self) -> None:
        """Called before each forward that has gradients enabled."""
        self._recorder.forward_begins()
        if self._calls is not None:
            self._calls.begin()

    def left(self, outcome: Any) -> None:
        """Called where such a forward has ended, or failed."""
        self._recorder.forward_ended()
        if self._calls is not None:
            self._calls.end()

    def ended(self, output: Any) -> None:
        self.left(output)
        if not self._recorder.here():
            return
        self._has_run = True
        row, replica, skipped = self._recorder.row, training.replica_of(self._model.wrapper), None
        step = replica.last if replica is not None else None
        if self._calls is not None:
            skipped = self._calls.skipped()
        elif step is not None and step is not self._seen:
            self._seen = step
            # Of a layer that is called several times, each skip counts.
            found = [self._numbers.get((skip.module, skip.layer)) for skip in step.skipped if not skip.part]
            skipped = [number for number in found if number is not None]
        if skipped is not None:
            row.skipped = [*(row.skipped or []), *(self.first_layer + number for number in skipped)]

    def backward_begins(self) -> None:
        """Called before the first backward of a step.

        Under the flag DDP leaves ``grad`` as it was where no rank has a gradient: it tells who got none only where it
        was None before, and not after ``zero_grad(set_to_none=False)``.
        """
        wrapper = self._model.wrapper
        if REDUCTION.of(self._model) is None and wrapper is not None and wrapper.find_unused_parameters:
            self._kept = any(each.grad is not None for each in self._model.parameters)

    def step_begins(self, row: StepRow) -> None:
        """Called before an optimizer's step: add the parameters without a gradient; nothing where nobody knows."""
        if not self._has_run:
            return
        self._has_run = False
        model, reduction, unused = self._model, REDUCTION.of(self._model), None
        if reduction is not None:
            unused = sorted(reduction.arrivals.left_out)
        elif model.wrapper is not None and model.wrapper.find_unused_parameters and not self._kept:
            unused = [i for i, each in enumerate(model.parameters) if each.requires_grad and each.grad is None]
        if unused is not None:
            row.unused = [*(row.unused or []), *(self.first_parameter + index for index in unused)]


class LayerCalls:
    """Notes the calls of layers by their numbers, from :meth:`begin` until :meth:`skipped` is asked.

    It is for LayerDrop as the toolkit ships it: where ddpfix draws for the layers it knows what is skipped. The hook is
    one for all modules, and is there during a forward only: a hook on a layer would be saved with it.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        self._numbers: Dict[int, int] = {id(layer): number for number, layer in enumerate(layers)}
        self._called: Set[int] = set()
        self._handle: Any = None

    def _note(self, layer: Any, inputs: Any) -> None:
        number = self._numbers.get(id(layer))
        if number is not None:
            self._called.add(number)

    def begin(self) -> None:
        self.end()
        self._called.clear()
        self._handle = register_module_forward_pre_hook(self._note)

    def end(self) -> None:
        """Note no calls any more: the forward has ended, or failed."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def skipped(self) -> List[int]:
        """Return the numbers of the layers that were not called; empty if none was, as in a forward of other parts."""
        if not self._called:
            return []
        return [number for number in range(len(self._numbers)) if number not in self._called]
