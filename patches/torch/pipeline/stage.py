"""One task that is done for models under DDP, and the call of DDP's constructor on which it acts (see :mod:`.ddp`)."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, Dict, List, Optional

from .model import Wrapped


class Call:
    """A call of DDP's constructor, before it runs.

    Attributes:
        arguments: the same by name, as they will be passed on; a stage may change them.
        facts: values that a stage stores for later stages, and for its own ``built``.
        number: the name of this model in messages between the ranks of its group; "" as long as it has none.
        parameters: those that DDP reduces, once its constructor has collected them.
    """

    def __init__(self, bound: inspect.BoundArguments) -> None:
        self.bound = bound
        self.arguments: Dict[str, Any] = bound.arguments
        self.facts: Dict[str, Any] = {}
        self.number = ""
        self.parameters: Optional[List[Any]] = None

    @property
    def module(self) -> Any:
        return self.arguments["module"]

    @property
    def group(self) -> Any:
        """The process group of the model; None is the default one."""
        mesh = self.arguments.get("device_mesh")
        return self.arguments.get("process_group") if mesh is None else mesh.get_group(mesh_dim=0)


class Stage:
    """One task that is done for models under DDP. ``place`` is its name in :data:`.order.ORDER`."""

    place: ClassVar[str]

    def arguments(self, call: Call) -> None:
        """Called before DDP's constructor runs: other ranks may never call it, and torch may refuse it here."""

    def together(self, call: Call) -> None:
        """Called in DDP's constructor when torch has checked its arguments: all ranks come here in the same order."""

    def built(self, model: Wrapped, call: Optional[Call]) -> None:
        """Called after a model was wrapped; ``call`` is None for a copy of one."""

    def hook(self, model: Wrapped, state: Any, hook: Any) -> None:
        """Called when the user registers a communication hook, before torch takes it."""

    def ended(self, model: Wrapped) -> None:
        """Called when this stage is removed from a model (undo)."""
