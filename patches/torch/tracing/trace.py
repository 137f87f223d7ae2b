"""``DDPFIX_TRACE=DIR``: each rank leaves a row for each optimizer step, which can be read after it was killed.

Nothing is communicated, and nothing waits for a GPU. docs/trace.md has the format.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Callable, Optional

from ddpfix.patching import tracebacks
from ddpfix.patching.dynamo import skip_frames, skip_module
from ddpfix.patching.site import Site

from ..pipeline import ddp
from ..pipeline.optimizers import Steps
from .recorder import Recorder
from .step_row import DATA


class Recording:
    """What all targets of the patch share in one activation."""

    recorder: Optional[Recorder] = None


def _recorder(site: Site) -> Recorder:
    """Return the recorder; made when it is first asked for."""
    kept = site.keep(Recording)
    if kept.recorder is None:
        kept.recorder = Recorder(site)
        site.at_undo(kept.recorder.end)
        # torch.compile leaves them alone.
        for name, module in list(sys.modules.items()):
            if name.startswith(f"{__package__}."):
                skip_module(module)
    return kept.recorder


def models(site: Site, module: ModuleType, owner: Any) -> None:
    """Put the stage in, which times forwards."""
    ddp.put(site, owner, Trace(_recorder(site)))


def batches(site: Site, module: ModuleType, owner: Any) -> None:
    """Time the ``__next__`` of the loader's iterators."""
    recording = _recorder(site)

    def timed(original: Callable[..., Any]) -> Callable[..., Any]:
        def __next__(self: Any) -> Any:
            if not recording.here():
                return original(self)
            token = recording.enter(DATA)
            try:
                return original(self)
            except BaseException as error:
                tracebacks.hide(error)
                raise
            finally:
                recording.settle()
                recording.leave(token)

        return __next__

    site.wrap_hot(owner, "__next__", timed)
    skip_frames(vars(owner)["__next__"])


def backwards(site: Site, module: ModuleType, owner: Any) -> None:
    """Time backwards and the steps of optimizers."""
    recording, steps = _recorder(site), site.keep(Steps)
    steps.follow(Trace.place, recording.step_begins, recording.step_ended)
    site.at_undo(lambda: steps.leave(Trace.place))

    def timed(original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            begun = recording.backward_begins(tensors)
            try:
                return original(tensors, *args, **kwargs)
            except BaseException as error:
                tracebacks.hide(error)
                raise
            finally:
                recording.backward_ended(begun)

        return backward

    site.wrap_hot(module, "backward", timed)
    skip_frames(vars(module)["backward"])


class Trace(ddp.Stage):
    """Times the forwards of models under DDP."""

    place = "trace"

    def __init__(self, recording: Recorder) -> None:
        self._recording = recording

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        traced = self._recording.built(model)
        if traced is not None:
            model.inputs = (self._recording.fed, *model.inputs)
            model.attach(self.place, traced.begin, traced.ended, traced.left)

    def ended(self, model: ddp.Wrapped) -> None:
        model.inputs = tuple(each for each in model.inputs if each != self._recording.fed)
