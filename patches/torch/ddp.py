"""The one wrapper of ``DistributedDataParallel``: its constructor, its forward, and ``register_comm_hook``.

What ddpfix does for a model under DDP is done by stages (:class:`Stage`). A patch id of the matrix puts one stage in;
their order is :data:`ORDER`, whatever the order of the matrix, and each works without the others. A stage looks at the
constructor's arguments, and attaches to a model what it wants to be called for before and after its forwards: a model
for which a stage has nothing to do pays nothing for it.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import sys
import weakref
from typing import TYPE_CHECKING, Any, Callable, ClassVar, ContextManager, Dict, List, Optional, Sequence, Tuple

import torch
from torch import distributed

from ddpfix import log
from ddpfix.layerdrop import schedule, training
from ddpfix.patching.dynamo import skip_frames, skip_module
from ddpfix.patching.site import Site
from ddpfix.ranks import roll_call, wrap_hooks

from . import sharding

if TYPE_CHECKING:
    from .accumulation import Window
    from .advice import Timed
    from .bucket_cost import Plan
    from .bucket_skip import Unsent
    from .finalizer import Finalizer

# Where each stage stands, the first one outermost: it sees the arguments first, and the end of a forward last.
ORDER = (
    "agreement",  # Nothing that needs the other ranks may happen before all are known to be there.
    "flag",  # Everything below asks whether DDP looks for unused parameters.
    "bucket_view",  # An argument of its own, after all reasons against it are known.
    "bucket_layout",  # What DDP builds buckets from is replaced while its constructor runs.
    "accumulation",  # Tells the steps of this model which micro-batches belong together.
    "bucket_skip",  # Its hook has to be registered before the first reduction, which the next stage may bring about.
    "finalize",  # Looks at the output that DDP returns, and at its reducer, which no later stage changes.
    "advice",  # Times DDP's own forward, and nothing of ours.
    "diagnosis",  # Nearest to DDP, whose error it completes.
)
# The stages that look at DDP's flag or reducer when a model is built.
REDUCER = ("finalize", "advice")
Before = Callable[[], None]
After = Callable[[Any], None]
Failed = Callable[[BaseException], None]


class Call:
    """A call of the constructor, before DDP sees it.

    Attributes:
        arguments: by name, as they will be passed on; a stage may change them.
        around: context managers that are open while DDP's constructor runs.
        facts: what a stage leaves for a later one, and for when the model is built.
    """

    def __init__(self, bound: inspect.BoundArguments) -> None:
        self.arguments: Dict[str, Any] = bound.arguments
        self.around: List[ContextManager[Any]] = []
        self.facts: Dict[str, Any] = {}

    @property
    def module(self) -> Any:
        return self.arguments["module"]


class Wrapped:
    """What ddpfix knows of one model under DDP.

    Attributes:
        parameters: those that DDP reduces, in the order of the reducer's own numbers, as they were at construction.
        names: theirs.
        holds: whether all micro-batches of an accumulation window skip the same layers.
        flag_is_ours: whether ddpfix has set find_unused_parameters, and nobody else.
        finalizer: what completes its reductions, if they are to be completed after backward.
        skips: what no rank has used, if it skips layers on all ranks alike.
        plan: how its layers share buckets.
        unsent: the state of our communication hook, if it is registered.
        timed: its first steps, while they are timed.
    """

    def __init__(self, wrapper: Any, copied: bool = False) -> None:
        self._wrapper = weakref.ref(wrapper)
        # DDP's own order; it has no public name. What is replaced in the module later stays in DDP's list.
        self.parameters: List[Any] = list(wrapper._build_params_for_reducer()[0])
        named = {id(parameter): name for name, parameter in wrapper.module.named_parameters()}
        self.names: List[str] = [named.get(id(parameter), "?") for parameter in self.parameters]
        # What the members of its group call it among themselves.
        self.number = roll_call.name_of_next(sharding.ranks_of(wrapper.process_group), "copy" if copied else "model")
        self.holds = False
        self.flag_is_ours = False
        # Whether DDP's reducer knows the sizes of buckets for when it makes them anew.
        self.sized = False
        self.finalizer: Optional[Finalizer] = None
        self.skips: Optional[Window] = None
        self.plan: Optional[Plan] = None
        self.unsent: Optional[Unsent] = None
        self.timed: Optional[Timed] = None
        self.before: Tuple[Before, ...] = ()
        self.after: Tuple[After, ...] = ()
        self.failed: Tuple[Failed, ...] = ()
        self._attached: Dict[str, Tuple[Optional[Before], Optional[After], Optional[Failed]]] = {}

    @property
    def wrapper(self) -> Any:
        return self._wrapper()

    def attach(
        self,
        place: str,
        before: Optional[Before] = None,
        after: Optional[After] = None,
        failed: Optional[Failed] = None,
    ) -> None:
        """Have something called before, after and instead of the end of each forward with gradients enabled."""
        self._attached[place] = (before, after, failed)
        self._arrange()

    def detach(self, place: str) -> None:
        if self._attached.pop(place, None) is not None:
            self._arrange()

    def _arrange(self) -> None:
        found = [self._attached[place] for place in ORDER if place in self._attached]
        self.before = tuple(before for before, _, _ in found if before is not None)
        self.after = tuple(after for _, after, _ in reversed(found) if after is not None)
        self.failed = tuple(failed for _, _, failed in reversed(found) if failed is not None)


class Stage:
    """One thing that is done for models under DDP. ``place`` is its name in :data:`ORDER`."""

    place: ClassVar[str]

    def arguments(self, call: Call) -> None:
        """DDP's constructor is about to run."""

    def built(self, model: Wrapped, call: Optional[Call]) -> None:
        """A model was wrapped; ``call`` is None for a copy of one."""

    def hook(self, model: Wrapped, register: Callable[..., Any], state: Any, hook: Any) -> bool:
        """The user registers a communication hook; True: this stage has done so itself."""
        return False

    def ended(self, model: Wrapped) -> None:
        """This stage is taken away from a model (undo)."""


# None for those that were wrapped before us: they agreed on nothing, and are left as they are.
MODELS: weakref.WeakKeyDictionary[Any, Optional[Wrapped]] = weakref.WeakKeyDictionary()
_STAGES: List[Stage] = []
# The wrappers themselves, while there are stages.
_SITE: List[Site] = []


def of(wrapper: Any) -> Optional[Wrapped]:
    """What is known of a model under DDP; None if it was wrapped without us."""
    return MODELS.get(wrapper)


def known() -> List[Wrapped]:
    """The models under DDP of which something is known."""
    return [model for model in list(MODELS.values()) if model is not None]


def put(site: Site, owner: Any, stage: Stage) -> None:
    """Put a stage in its place, until the patch is undone.

    Args:
        site: of the patch that the stage belongs to.
        owner: the class ``DistributedDataParallel``.
        stage: not one whose place is taken already.
    """
    if not _SITE:
        # A wrapper that cannot be put on leaves nothing behind.
        _SITE.append(_wrap(Site("torch.ddp", site.settings, site.activation), owner))
    site.parts.append(_SITE[0])
    _STAGES.append(stage)
    skip_module(sys.modules[type(stage).__module__])
    _STAGES.sort(key=lambda each: ORDER.index(each.place))
    site.at_undo(lambda: _take_out(stage))


def _wrap(site: Site, owner: Any) -> Site:
    _name_those_before(owner)
    try:
        site.wrap(owner, "__init__", _built)
        site.wrap_hot(owner, "forward", _forward)
        skip_frames(vars(owner)["forward"])
        _untrace()
        site.wrap(owner, "register_comm_hook", _registered)
    except Exception:
        site.undo()
        raise
    return site


def _untrace() -> None:
    """torch.compile leaves what stages do before and after a forward to Python, and compiles what it did before."""
    for name, module in list(sys.modules.items()):
        if name.startswith(__package__ + "."):
            skip_module(module)
    for module in (schedule, training, wrap_hooks):
        skip_module(module)


def _take_out(stage: Stage) -> List[str]:
    _STAGES.remove(stage)
    for model in known():
        stage.ended(model)
        model.detach(stage.place)
    if _STAGES:
        return []
    MODELS.clear()
    return _SITE.pop().undo()


def _name_those_before(owner: Any) -> None:
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    for found in [found for found in gc.get_objects() if issubclass(type(found), owner)]:
        MODELS[found] = None
        log.warning(
            f"a {type(found.module).__name__} was wrapped by DistributedDataParallel before ddpfix was activated: it is"
            " not covered. Activate ddpfix first (import ddpfix.auto as the first line)."
        )


def _built(wrapped: Any, wrapper: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
    bound = inspect.signature(wrapped).bind(*args, **kwargs)
    call = Call(bound)
    call.facts["failure"] = wrap_hooks.run_before_wrap(call.module)
    for stage in _STAGES:
        stage.arguments(call)
    with contextlib.ExitStack() as open_now:
        for context in call.around:
            open_now.enter_context(context)
        wrapped(*bound.args, **bound.kwargs)
    _meet(wrapper, call)


def _meet(wrapper: Any, call: Optional[Call]) -> Optional[Wrapped]:
    """A model has come into being, by the constructor or as a copy."""
    try:
        model = MODELS[wrapper] = Wrapped(wrapper, copied=call is None)
    except Exception as error:
        MODELS[wrapper] = None
        log.warning(f"a {type(wrapper.module).__name__} under DDP is left as it is: {error!r}")
        return None
    for stage in _STAGES:
        try:
            stage.built(model, call)
        except Exception as error:
            model.detach(stage.place)
            log.warning(f"{stage.place} of a {type(wrapper.module).__name__} under DDP is left to torch: {error!r}")
    return model


def build_again(model: Wrapped) -> None:
    """DDP has made another reducer for a model that was not trained yet."""
    for stage in _STAGES:
        if stage.place in REDUCER:
            model.detach(stage.place)
            stage.built(model, None)


def _forward(stock: Callable[..., Any]) -> Callable[..., Any]:
    # All of it is C, so that torch.compile finds no frame of Python here.
    models: Any = MODELS
    find, ref, enabled = models.data.get, weakref.ref, torch.is_grad_enabled

    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if not enabled():
            return stock(self, *inputs, **kwargs)
        model = find(ref(self)) or _copy(self)
        if model is None:
            return stock(self, *inputs, **kwargs)
        try:
            for before in model.before:
                before()
            output = stock(self, *inputs, **kwargs)
        except BaseException as error:
            _has_failed(model, error)
            raise
        for after in model.after:
            after(output)
        return output

    return forward


def _copy(wrapper: Any) -> Optional[Wrapped]:
    """A model that nobody was seen to wrap: a copy of one, or one from before us."""
    return None if wrapper in MODELS else _meet(wrapper, None)


def _has_failed(model: Wrapped, error: BaseException) -> None:
    for failed in model.failed:
        failed(error)


def _registered(wrapped: Any, wrapper: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    model = MODELS.get(wrapper)
    given = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    for stage in _STAGES if model is not None else ():
        if stage.hook(model, wrapped, given["state"], given["hook"]):  # type: ignore[arg-type]
            return None
    return wrapped(*args, **kwargs)


def tensors(output: Any) -> Sequence[Any]:
    """The tensors in what a forward has returned, as DDP finds them."""
    if type(output) is torch.Tensor:
        return (output,)
    from torch.nn.parallel.distributed import _find_tensors

    return list(_find_tensors(output))


def replica(model: Wrapped) -> Optional[training.Replica]:
    """The agreed seed and the steps of a model, if its ranks have agreed."""
    return training.replica_of(model.wrapper)
