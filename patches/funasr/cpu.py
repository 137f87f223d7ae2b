"""Training on a CPU (``++device=cpu``), for smoke tests on a laptop: FunASR's trainers call CUDA unconditionally.

While ``main`` runs with ``device=cpu``, and only then, those calls lead to the CPU. Without ``++backend`` the backend
is gloo, since nccl has no CPU.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from types import ModuleType
from typing import Any, Dict, Iterator, Tuple

from ddpfix import log
from ddpfix.patching import temporary
from ddpfix.patching.site import Site

from . import entry

_TRAINERS = ("funasr.train_utils.trainer", "funasr.train_utils.trainer_ds")


def run_here(site: Site, module: ModuleType, owner: Any) -> None:
    entry.before_main(site, _backend)
    entry.around_main(site, lambda run: _cpu(site, run))


def _wanted(run: entry.Run) -> bool:
    return str(run.kwargs.get("device", "")).lower() == "cpu"


def _backend(run: entry.Run) -> None:
    if _wanted(run) and "backend" not in run.kwargs:
        run.kwargs["backend"] = "gloo"
        log.info("device=cpu: using the gloo backend. Set ++backend to change it")


@contextlib.contextmanager
def _cpu(parent: Site, run: entry.Run) -> Iterator[None]:
    if not _wanted(run):
        yield
        return
    with temporary.patched(parent) as site:
        _calls(site)
        _trainers(site)
        _precision(site, run)
        yield


def _calls(site: Site) -> None:
    """The CUDA calls of the entries: choosing a device, moving the model, and emptying a cache."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    _set(site, torch.cuda, "set_device", lambda device: None)
    _set(site, torch.cuda, "device", lambda device: contextlib.nullcontext())
    _set(site, torch.nn.Module, "cuda", lambda self, device=None: self)
    site.wrap(DistributedDataParallel, "__init__", _without_devices)


def _without_devices(wrapped: Any, instance: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
    kwargs = {key: value for key, value in kwargs.items() if key not in ("device_ids", "output_device")}
    wrapped(*args[:1], **kwargs)


def _trainers(site: Site) -> None:
    """``trainer_ds`` is given the local rank for a device: a number that means a GPU."""
    for name in _TRAINERS:
        trainer = getattr(sys.modules.get(name), "Trainer", None)
        if trainer is not None:
            _set(site, trainer, "device", _Device())


def _set(site: Site, owner: Any, name: str, value: Any) -> None:
    """Set an attribute for the length of the run. Unlike :meth:`Site.replace`, copies in other modules stay."""
    had, was = name in vars(owner), vars(owner).get(name)
    setattr(owner, name, value)
    site.at_undo(lambda: setattr(owner, name, was) if had else delattr(owner, name))


class _Device:
    """The trainer's attribute ``device``, always the CPU."""

    def __get__(self, trainer: Any, owner: Any = None) -> Any:
        return "cpu"

    def __set__(self, trainer: Any, value: Any) -> None:
        # Kept for the time after the run, when this descriptor is gone.
        trainer.__dict__["device"] = value


def _precision(site: Site, run: entry.Run) -> None:
    """The names under which trainers and entries look for mixed precision; those of CUDA switch themselves off here."""
    places = [vars(sys.modules[name]) for name in _TRAINERS if name in sys.modules] + [run.namespace]
    for names in places:
        for name, ours in (("autocast", _autocast), ("GradScaler", _scaler)):
            if name in names:
                site.at_undo(functools.partial(names.__setitem__, name, names[name]))
                names[name] = ours


def _autocast(enabled: bool = True, dtype: Any = None, cache_enabled: bool = True, **kwargs: Any) -> Any:
    import torch

    return torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=enabled, cache_enabled=cache_enabled)


def _scaler(enabled: bool = True, **kwargs: Any) -> Any:
    import torch

    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler("cpu", enabled=enabled, **kwargs)
    # Before torch 2.3 there is no scaler for the CPU; this one switches itself off, and autocast takes bfloat16.
    return torch.cuda.amp.GradScaler(enabled=False)
