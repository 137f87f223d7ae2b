"""Accelerators: which ones this process uses, their events and memory, and how to wait for one.

torch has one module for each kind of accelerator, with functions of the same names. Not each of them has every
function: a number that a kind does not give is None. Nothing here begins the use of an accelerator, and only
:func:`in_use` may be called from a thread of ddpfix: any other call could open a context on a device that the program
did not choose, and breaks a graph that another thread captures.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable, List, Optional

# The names of torch's own modules, and of those that vendors' packages add to torch.
KINDS = ("cuda", "npu", "xpu", "hpu", "mps", "mlu", "musa")
_WITH_GRAPHS, _CAPTURING = ("cuda", "npu", "xpu"), "is_current_stream_capturing"
# Kinds of tensors that no accelerator has.
_HOST = ("cpu", "meta")


def is_accelerator(device: Any) -> bool:
    """Return whether what is on a device is computed without the host waiting for it."""
    return device.type not in _HOST


def in_use() -> List[str]:
    """Return the kinds of accelerators that this process has begun to use."""
    return [kind for kind in KINDS if _is_in_use(_module(kind))]


def is_capturing() -> bool:
    """Return whether this thread's stream is being captured in a graph."""
    # Asked several times in each step: the kinds without graphs are left out.
    for kind in _WITH_GRAPHS:
        module = _module(kind)
        if module is not None and module.is_initialized() and getattr(module, _CAPTURING, bool)():
            return True
    return False


def event(device: Any, timed: bool = False) -> Any:
    """Return an event on the current stream of the tensor's or the model's own device; None where a kind has none."""
    module = _module(device.type)
    made = getattr(module, "Event", None) or getattr(getattr(module, "event", None), "Event", None)
    if made is None:
        return None
    marked, stream = made(enable_timing=timed), getattr(module, "current_stream", None)
    marked.record(*(() if stream is None else (stream(device),)))
    return marked


def current_stream(device: Any) -> str:
    """Return the stream in which this thread gives work to a device, in words that are the same for the same stream."""
    return repr(_asked("current_stream", device))


def peak_memory(device: Any) -> Optional[int]:
    """Return the most bytes that torch's allocator has given out on a device; it keeps the number, nothing is asked."""
    return _number("max_memory_allocated", device)


def used_memory(device: Any) -> Optional[int]:
    """Return the bytes that torch's allocator has given out on a device now."""
    return _number("memory_allocated", device)


def reserved_memory(device: Any) -> Optional[int]:
    """Return the bytes that torch's allocator holds on a device."""
    return _number("memory_reserved", device)


def total_memory(device: Any) -> Optional[int]:
    """Return the bytes that a device has."""
    found = getattr(_asked("get_device_properties", device), "total_memory", None)
    return None if found is None else int(found)


def empty_cache(device: Any) -> None:
    """Give back what torch's allocator holds on a device and nobody uses."""
    module = _module(device.type)
    within = getattr(module, "device", None)
    if within is None:
        module.empty_cache()
        return
    # Without the device of this rank, the call would open a context on the first one (FunASR issue 2373).
    with within(device):
        module.empty_cache()


def random_states() -> List[Callable[[], object]]:
    """Return functions that give the generators of the accelerators in use the states that they have now."""
    found: List[Callable[[], object]] = []
    for kind in in_use():
        module: Any = _module(kind)
        end = "_all" if hasattr(module, "get_rng_state_all") else ""
        put, states = getattr(module, f"set_rng_state{end}"), getattr(module, f"get_rng_state{end}")()
        found.append(functools.partial(put, states))
    return found


def _module(kind: str) -> Any:
    """Return torch's module for a kind; None where torch has none, or is not imported."""
    torch = sys.modules.get("torch")
    return None if torch is None else vars(torch).get(kind)


def _is_in_use(module: Any) -> bool:
    # torch.mps has no beginning: there is one device, or none.
    begun = getattr(module, "is_initialized", None) or getattr(module, "device_count", None)
    return begun is not None and bool(begun())


def _asked(name: str, device: Any) -> Any:
    function = getattr(_module(device.type), name, None)
    if function is None or not is_accelerator(device):
        return None
    # There is only one device of that kind, and its functions take none.
    return function() if device.type == "mps" else function(device)


def _number(name: str, device: Any) -> Optional[int]:
    found = _asked(name, device)
    return None if found is None else int(found)
