"""What the wrappers of DDP and FSDP keep under names that are not public."""

from __future__ import annotations

from typing import Any, List

# The method of the constructor that collects the parameters: after all checks, before the first collective.
BUILD = "_build_params_for_reducer"

# The function of the wrapper in which the forward of the wrapped module runs.
RUNS = "_run_ddp_forward"


def inner(wrapper: Any) -> Any:
    """Return the wrapped module; modules look their attributes up in Python, which takes 1.5 µs of each forward."""
    found = wrapper._modules.get("module")
    return wrapper.module if found is None else found


def trains(wrapper: Any) -> bool:
    """Return whether a forward of a model under DDP is one of training: what counts is the mode that its layers see."""
    found = wrapper._modules.get("module")
    return bool((wrapper.module if found is None else found).training)


def parameters_of(wrapper: Any) -> List[Any]:
    """Return the parameters that DDP reduces, in the order of the reducer's own numbers."""
    return list(wrapper._build_params_for_reducer()[0])


def rebuild(wrapper: Any) -> None:
    """Make the reducer anew, as DDP does for a copy of a model."""
    parameters, sparse = wrapper._build_params_for_reducer()
    names = wrapper._build_debug_param_to_name_mapping(parameters)
    wrapper._ddp_init_helper(parameters, sparse, names, False)


def joins(wrapper: Any) -> bool:
    """Return whether a model runs within ``join()``, so that this rank may be the only one that still trains."""
    return bool(getattr(getattr(wrapper, "_join_config", None), "enable", False))


def sends_buffers(wrapper: Any) -> bool:
    """Return whether DDP broadcasts the buffers of this rank: the others' values are replaced, its own stay."""
    return not joins(wrapper) and int(wrapper.process_group.rank()) == 0


def has_python_reducer(wrapper: Any) -> bool:
    """Return whether compiled autograd reduces, without a reducer."""
    return bool(getattr(wrapper, "_use_python_reducer", False))


def delays(wrapper: Any) -> bool:
    """Return whether some parameters are reduced by themselves (``delay_all_reduce_named_params``)."""
    return bool(
        getattr(wrapper, "_delay_all_reduce_params", None) or getattr(wrapper, "_delay_all_reduce_all_params", False)
    )


def is_inner(wrapper: Any) -> bool:
    """Return whether FSDP has found that a wrapper is a part of another one."""
    return getattr(wrapper, "_is_root", None) is False


def reduces(wrapper: Any) -> bool:
    """Return whether gradients are reduced, as they are not under ``no_sync``."""
    return bool(wrapper._sync_gradients)
