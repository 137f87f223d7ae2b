"""The one wrapper of ``DistributedDataParallel``: its constructor, its forward, and ``register_comm_hook``.

What ddpfix does for a model under DDP is done by stages (:class:`Stage`). A patch id of the matrix puts one stage in;
their order is :data:`ORDER`, whatever the order of the matrix, and each works without the others. A stage looks at the
constructor's arguments, and attaches callbacks to a model that run before and after its forwards. A model for which a
stage has nothing to do pays nothing for that stage.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import sys
import threading
from typing import (
    Any,
    Callable,
    Dict,
    List,
    Optional,
    Sequence,
    Tuple,
)

import torch
from torch import distributed

from ddpfix import log
from ddpfix.exchange import roll_call
from ddpfix.layerdrop import training
from ddpfix.models import graph, wrap_hooks
from ddpfix.patching import attribution, tracebacks
from ddpfix.patching.dynamo import skip_frames, skip_module
from ddpfix.patching.site import Site

from ..internals import modes, process_groups
from ..internals.wrapper import BUILD, inner
from ..internals.wrapper import trains as trains
from .model import MODELS as MODELS
from .model import Slot as Slot
from .model import Wrapped as Wrapped
from .model import known as known
from .model import of as of
from .model import of_replica as of_replica
from .model import replica as replica
from .model import until_destroyed as until_destroyed
from .order import ORDER as ORDER
from .order import REDUCER as REDUCER
from .order import Shared


class Call:
    """A call of DDP's constructor, before it runs.

    Attributes:
        arguments: of torch's constructor, by name, as they will be passed on; a stage may change them.
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

    place: str

    def arguments(self, call: Call) -> None:
        """Called before DDP's constructor runs: other ranks may never call it, and torch may refuse it here."""

    def synchronise(self, call: Call) -> None:
        """Called in DDP's constructor when torch has checked its arguments: all ranks come here in the same order."""

    def built(self, model: Wrapped, call: Optional[Call]) -> None:
        """Called after a model was wrapped; ``call`` is None for a copy of one."""

    def hook(self, model: Wrapped, state: Any, hook: Any) -> None:
        """Called when the user registers a communication hook, before torch takes it."""

    def ended(self, model: Wrapped) -> None:
        """Called when this stage is removed from a model (undo)."""


# Where the stages are, beside this room.
_PATCHES = __package__.rpartition(".")[0] + "."
# The stages in their order; the three wrappers are there as long as there are stages.
_STAGES: Shared[Stage] = Shared("torch.ddp", ORDER)
# Models are recorded one after the other: stages put wrappers on with the first one, and know which others there are.
_RECORDING = threading.RLock()


def stages() -> Tuple[Stage, ...]:
    """Return the stages in their order."""
    return _STAGES.subscribers


def put(site: Site, owner: Any, stage: Stage) -> None:
    """Put a stage in its place, which no other has taken, until the patch is undone."""
    _STAGES.join(site, stage.place, stage, functools.partial(_wrap, owner))
    skip_module(sys.modules[type(stage).__module__])
    site.at_undo(lambda: _take_out(stage))


def _wrap(owner: Any, site: Site) -> None:
    _name_those_before(owner)
    site.wrap(owner, "__init__", _built)
    site.wrap_hot(owner, "forward", _forward)
    skip_frames(vars(owner)["forward"])
    site.wrap(owner, "register_comm_hook", _registered)
    untrace()
    site.at_undo(MODELS.clear)


def untrace() -> None:
    """torch.compile leaves what stages do before and after a forward to Python, and compiles what it did before."""
    ours = [module for name, module in list(sys.modules.items()) if name.startswith(_PATCHES)]
    for module in [*ours, graph, training, wrap_hooks]:
        skip_module(module)


def _take_out(stage: Stage) -> None:
    for model in known():
        stage.ended(model)
        model.detach(stage.place)


def _name_those_before(owner: Any) -> None:
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    # One that is being built just now has no module yet: its constructor is covered from here on.
    found = [each for each in gc.get_objects() if issubclass(type(each), owner)]
    for wrapper in [each for each in found if "module" in vars(each).get("_modules", ())]:
        MODELS[wrapper] = None
        log.warning(
            f"a {type(inner(wrapper)).__name__} was wrapped by DistributedDataParallel before ddpfix was activated, so"
            " ddpfix leaves it to torch. Make import ddpfix.auto the first line of the script, or set DDPFIX=1."
        )


def _built(wrapped: Any, wrapper: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
    call = _call(wrapped, args, kwargs)
    if call is None:
        wrapped(*args, **kwargs)
        MODELS[wrapper] = None
        return
    call.facts["failure"] = wrap_hooks.run_before_wrap(call.module)
    for stage in stages():
        stage.arguments(call)
    _meet_within(wrapper, call)
    try:
        wrapped(*call.bound.args, **call.bound.kwargs)
    finally:
        vars(wrapper).pop(BUILD, None)
    _record(wrapper, call)


def _call(wrapped: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[Call]:
    """Return a call of the constructor; None where it is left to torch.

    Its arguments may be those of another patcher's wrapper, or an error; a group of the program's own class may have
    nobody to agree with.
    """
    try:
        call = Call(inspect.signature(wrapped).bind(*args, **kwargs))
        return call if process_groups.is_torchs(call.group) else None
    except Exception:
        return None


def _meet_within(wrapper: Any, call: Call) -> None:
    """Have the ranks meet where DDP's constructor asks for its parameters: between its checks and its collectives.

    A constructor that torch refuses on one rank, whose program goes on, is none that the other ranks wait for. Where
    DDP communicates nothing (``init_sync=False``), one rank may even build a model of its own.
    """
    build = getattr(wrapper, BUILD)

    def met() -> Any:
        vars(wrapper).pop(BUILD, None)
        if call.arguments.get("init_sync", True):
            call.number = roll_call.name_of_next(process_groups.members_of(call.group).name, "model")
            with modes.hidden():
                for stage in stages():
                    stage.synchronise(call)
        found = build()
        call.parameters = list(found[0])
        return found

    vars(wrapper)[BUILD] = attribution.uncounted(met)


def _record(wrapper: Any, call: Optional[Call]) -> Optional[Wrapped]:
    """Record a new model, made by the constructor or as a copy, and run the stages on it."""
    with _RECORDING:
        model: Optional[Wrapped] = None
        try:
            if process_groups.is_torchs(wrapper.process_group):
                model = Wrapped(wrapper, *(() if call is None else (call.number, call.parameters)))
        except Exception as error:
            log.warning(f"a {type(inner(wrapper)).__name__} under DDP is left to torch: {error!r}")
        MODELS[wrapper] = model
        if model is None:
            return None
        for stage in stages():
            try:
                # A subclass of parameters may count what is called.
                with modes.hidden(), modes.Uncounted():
                    stage.built(model, call)
            except Exception as error:
                model.detach(stage.place)
                name = type(inner(wrapper)).__name__
                log.warning(f"{stage.place} of a {name} under DDP is left to torch: {error!r}")
        return model


def rebuild_stages(model: Wrapped) -> None:
    """Rebuild the stages that read the reducer: DDP has made another one for a model that was not trained yet."""
    for stage in stages():
        if stage.place in REDUCER:
            model.detach(stage.place)
            stage.built(model, None)


def _forward(original: Callable[..., Any]) -> Callable[..., Any]:
    # Functions in C only, so that torch.compile finds no Python frame here.
    find, enabled = MODELS.found.get, torch.is_grad_enabled
    thread = threading.get_ident
    # What stages read of a tensor is no call of the program's, which a subclass of tensors or a mode may count.
    uncounted = modes.Uncounted

    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        model = None
        try:
            if not enabled():
                return original(self, *inputs, **kwargs)
            model = find(id(self)) or _copy(self)
            if model is None:
                return original(self, *inputs, **kwargs)
            model.thread = thread()
            if model.inputs:
                with uncounted():
                    for look in model.inputs:
                        look(inputs, kwargs)
            for before in model.before:
                before()
            output = original(self, *inputs, **kwargs)
            with uncounted():
                for after in model.after:
                    after(output)
        except BaseException as error:
            for failed in () if model is None else model.failed:
                failed(error)
            tracebacks.hide(error)
            raise
        return output

    return forward


def _copy(wrapper: Any) -> Optional[Wrapped]:
    """Return the record of a copy of a wrapped model; None for a model that was wrapped before ddpfix was activated."""
    return None if wrapper in MODELS else _record(wrapper, None)


def _registered(wrapped: Any, wrapper: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    model, given = MODELS.get(wrapper), {}
    # An error of the arguments is torch's.
    with contextlib.suppress(TypeError):
        given = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    for stage in stages() if model is not None and given else ():
        stage.hook(model, given["state"], given["hook"])  # type: ignore[arg-type]
    return wrapped(*args, **kwargs)


def tensors(output: Any) -> Sequence[Any]:
    """Return the tensors in a forward's output, see :func:`.graph.tensors_in`."""
    if type(output) is torch.Tensor:
        return (output,)
    return graph.tensors_in(output)
