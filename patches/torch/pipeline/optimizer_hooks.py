"""The one pair of hooks at the steps of all optimizers of torch."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

from .order import STEPS

# Called as torch calls its own: with the optimizer and the arguments of its step. Before a step it may return others.
Hook = Callable[[Any, Tuple[Any, ...], Dict[str, Any]], Any]


class Steps:
    """The steps of all optimizers in one activation; torch has ddpfix's hooks while somebody follows them."""

    def __init__(self) -> None:
        self._at: Dict[str, Tuple[Optional[Hook], Optional[Hook]]] = {}
        self._before: Tuple[Hook, ...] = ()
        self._after: Tuple[Hook, ...] = ()
        self._handles: List[Any] = []
        # How many have begun in this process.
        self.count = 0

    def follow(self, place: str, before: Optional[Hook] = None, after: Optional[Hook] = None) -> None:
        """Call these before and after each step, in the order of :data:`.order.STEPS`."""
        self._at[place] = before, after
        self._arrange()

    def leave(self, place: str) -> None:
        """Call nothing of this place any more."""
        if self._at.pop(place, None) is not None:
            self._arrange()

    def _arrange(self) -> None:
        followed = [self._at[place] for place in STEPS if place in self._at]
        self._before = tuple(before for before, _ in followed if before is not None)
        self._after = tuple(after for _, after in followed if after is not None)
        if followed and not self._handles:
            from torch.optim import optimizer

            self._handles.append(optimizer.register_optimizer_step_pre_hook(self._begins))
            self._handles.append(optimizer.register_optimizer_step_post_hook(self._ended))
        while self._handles and not followed:
            self._handles.pop().remove()

    def _begins(self, optimizer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        self.count += 1
        changed = None
        for before in self._before:
            result = before(optimizer, args, kwargs)
            if result is not None:
                changed = args, kwargs = result
        return changed

    def _ended(self, optimizer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        for after in self._after:
            after(optimizer, args, kwargs)
