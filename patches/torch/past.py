"""Calls past the wrapper in programs that belong to no toolkit: routed where the user asks for it, or named.

A program may mean such a call to stay on its rank: it adapts a model by itself for a while, or averages gradients in
a way of its own. So nothing is changed by default. Once replicas are known to differ, the next such call is named.
"""

from __future__ import annotations

import functools
import sys
import weakref
from types import FrameType, ModuleType
from typing import Any, Callable, List, Optional

import torch

from ddpfix import log
from ddpfix.patching.site import Site

from ..common import past
from . import ddp, sharding

# Calls of modules that are looked at until the search ends.
_CALLS = 10_000
_ENDS: List[Callable[[], None]] = []


def route(site: Site, module: ModuleType, owner: Any) -> None:
    """Put the stage in (``DDPFIX_PAST_WRAPPER=route``)."""
    ddp.put(site, owner, Past(site))


class Past(ddp.Stage):
    """Has training forwards of wrapped models go through their wrappers.

    Args:
        site: of the patch that it belongs to.
    """

    place = "past"

    def __init__(self, site: Site) -> None:
        self._site = site

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        ranks = sharding.ranks_of(model.wrapper.process_group)
        # Perhaps not all ranks have a copy.
        if call is not None and len(ranks) > 1:
            kind = type(model.wrapper.module).__name__
            past.route(self._site, model.wrapper, ranks, functools.partial(_told, kind))


def _told(kind: str, where: str) -> str:
    return (
        f"{where} calls a {kind} past its DistributedDataParallel wrapper: calls in training forwards go through the"
        " wrapper, so that their gradients are averaged"
    )


def name_next(wrapper: Any) -> None:
    """Name the place of the next training forward that calls the model, or a part of it, past its wrapper."""
    search = _Search(wrapper)
    _ENDS.append(search.end)


def end() -> None:
    """Undo: look at no calls any more."""
    while _ENDS:
        _ENDS.pop()()


class _Search:
    def __init__(self, wrapper: Any) -> None:
        self._wrapper = weakref.ref(wrapper)
        self._left = _CALLS
        self._handles = [
            module.register_forward_pre_hook(functools.partial(self._called, name))
            for name, module in wrapper.module.named_modules()
        ]

    def end(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _called(self, name: str, module: Any, inputs: Any) -> None:
        self._left -= 1
        frame = past.program(sys._getframe(1))
        if self._left < 0:
            self.end()
        elif torch.is_grad_enabled() and module.training and not past.elsewhere():
            wrapper = self._wrapper()
            if wrapper is not None and not _is_inside(wrapper, frame):
                self.end()
                log.on_every_rank(named(type(wrapper.module).__name__, name, past.line(frame)))


def named(kind: str, part: str, where: str) -> str:
    """What is said of a call past the wrapper: of which class, which part of it, and where it stands."""
    called = f"{part} of a {kind}" if part else f"a {kind}"
    return (
        f"{where} calls {called} past its DistributedDataParallel wrapper in training: its gradients are not averaged."
        " Call the wrapped model" + ("" if part else " (DDPFIX_PAST_WRAPPER=route does it for you)")
    )


def _is_inside(wrapper: Any, frame: Optional[FrameType]) -> bool:
    """Whether a forward of the wrapper has led here."""
    while frame is not None:
        if past.is_ddp(frame) and frame.f_locals.get("self") is wrapper:
            return True
        frame = frame.f_back
    return False
