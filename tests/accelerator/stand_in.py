"""The stand-in accelerator in a rank: torch's module for it, its process group over gloo, and who reads on the host.

It is called ``npu``, as a vendor's package calls its own: what a name decides is decided as on a real one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import queue
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
import types
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Tuple

import torch
from torch import distributed
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
from torch.utils.cpp_extension import include_paths, library_paths

from ddpfix import log
from ddpfix.groups import internals
from tests.support import host_reads

SOURCE = Path(__file__).with_name("accelerator.cpp")
COMPILER = shutil.which("g++")
NAME = "accelerator_extension"
# Headers that are not public: of other releases it is not known whether they fit.
RELEASES = ("2.13.",)
KIND, BACKEND = "npu", "npuccl"
# Bytes that the allocator of this device says to have given out at most, and to hold.
PEAK, RESERVED = 12345, 23456
_GROUPS: List[Any] = []


def missing() -> str:
    """Why it cannot be compiled here; "" if it can."""
    if COMPILER is None:
        return "there is no g++ to build the stand-in accelerator with"
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not headers.exists():
        return f"there is no {headers} to build the stand-in accelerator with"
    fits = torch.__version__.startswith(RELEASES)
    return "" if fits else f"the stand-in accelerator is written for torch {RELEASES[0]}x"


def built(folder: Path) -> Path:
    """The library, which is compiled (half a minute) where the folder has none of this source and this torch."""
    key = hashlib.sha1(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:12]
    made = folder / f"{NAME}.{key}.so"
    if made.exists():
        return made
    parts = [*(f"-I{path}" for path in [*include_paths(), sysconfig.get_paths()["include"]])]
    parts += [f"-L{path}" for path in library_paths()]
    parts += ["-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python", f"-DTORCH_EXTENSION_NAME={NAME}", "-std=c++20"]
    part = made.with_suffix(".part")
    command = [str(COMPILER), "-O0", "-w", "-shared", "-fPIC", str(SOURCE), "-o", str(part), *parts]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    part.rename(made)
    return made


class Rank:
    """The accelerator of this process.

    Where it ``waits``, collectives return at once, and what reads a value spins until they are done.
    """

    def __init__(self, library: Path) -> None:
        spec = importlib.util.spec_from_file_location(NAME, library)
        assert spec is not None and spec.loader is not None
        self.extension = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.extension)
        # Values that were read on the host while ``counts``, by what reads and the line that asks.
        self.reads: host_reads.Reads = Counter()
        # Calls of torch's module for the device: name, whose thread, number of the device that was given.
        self.calls: Counter[Tuple[str, str, Optional[int]]] = Counter()
        self.counts = self.waits = False
        self.refused: Set[Any] = set()  # types, by its collectives
        self.queue: queue.Queue[Any] = queue.Queue()

    def begin(self) -> None:
        """Register it with torch."""
        torch.utils.rename_privateuse1_backend(KIND)
        self.extension.start()
        torch._register_device_module(KIND, Module(self))
        torch.utils.generate_methods_for_privateuse1_backend(unsupported_dtype=None)
        heard = types.ModuleType("accelerator_reads")
        vars(heard)["read"] = self._read
        sys.modules["accelerator_reads"] = heard
        threading.Thread(target=self._run, daemon=True, name="the device").start()

        def made(store: Any, rank: int, size: int, timeout: Any) -> Any:
            _GROUPS.append(Group(self, store, rank, size, timeout))
            return _GROUPS[-1]

        distributed.Backend.register_backend(BACKEND, made, devices=[KIND])
        # A vendor's group is torch's own, with a backend in C++; this class of Python would count as a program's.
        known = internals.is_torchs
        for module in list(sys.modules.values()):
            if getattr(module, "is_torchs", None) is known:
                vars(module)["is_torchs"] = lambda group: True

    def _read(self, what: str) -> None:
        if self.counts:
            self.reads[what, host_reads.asked_by()] += 1

    def _run(self) -> None:
        while True:
            group, tensors, options = self.queue.get()
            try:
                # What a hang shows are waits, and no values.
                group.gloo.allreduce([torch.zeros(each.shape, dtype=each.dtype) for each in tensors], options).wait()
            finally:
                self.extension.pend(-1)


class Module(types.ModuleType):
    """torch's module for the device; a call is recorded with its thread and the device that it is asked for."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(f"torch.{KIND}")
        self._rank = rank
        for name, value in (
            ("synchronize", None),
            ("max_memory_allocated", PEAK),
            ("memory_reserved", RESERVED),
            ("memory_allocated", PEAK - 1),
            ("reset_peak_memory_stats", None),
            ("current_stream", "its stream"),
            ("is_current_stream_capturing", False),
        ):
            setattr(self, name, self._recorded(name, value))
        fixed: Dict[str, Any] = {"is_initialized": True, "is_available": True, "_is_in_bad_fork": False}
        fixed.update(current_device=0, device_count=2, manual_seed_all=None, set_rng_state=None)
        fixed.update(get_amp_supported_dtype=[torch.float16, torch.bfloat16])
        for name, value in fixed.items():
            setattr(self, name, lambda *_, value=value, **__: value)
        self.get_rng_state = lambda device=None: torch.get_rng_state()

    def record(self, name: str, device: Any = None) -> None:
        index = device.index if isinstance(device, torch.device) else None
        # Asked for its name, a thread of ddpfix would be listed among the program's.
        thread = "ddpfix" if threading.get_ident() in log.NOTED.unlisted else "the program"
        self._rank.calls[name, thread, index] += 1

    def _recorded(self, name: str, value: Any) -> Any:
        def function(device: Any = None) -> Any:
            self.record(name, device)
            return value

        return function

    def Event(self, enable_timing: bool = False) -> Any:
        return Event(self)


class Event:
    """An event of the device, which is over at once."""

    def __init__(self, module: Module) -> None:
        self._module, self._at = module, 0.0

    def record(self, stream: Any = None) -> None:
        self._module.record("Event.record" if stream is not None else "Event.record on the current stream")
        self._at = time.perf_counter()

    def query(self) -> bool:
        self._module.record("Event.query")
        return True

    def elapsed_time(self, other: Event) -> float:
        self._module.record("Event.elapsed_time")
        return (other._at - self._at) * 1000


def done(value: List[Any]) -> Any:
    """A collective that has been given to the device."""
    future: Any = torch.futures.Future(devices=[each.device for each in value[:1] if each.device.type == KIND] or None)
    future.set_result(value)
    return _create_work_from_future(future)


class Group(distributed.ProcessGroup):
    """Collectives of the device, over gloo."""

    def __init__(self, rank: Rank, store: Any, number: int, size: int, timeout: Any) -> None:
        super().__init__(number, size)
        # Collectives that were begun, as the groups of vendors count them.
        self._begun = 0
        self._rank, self.gloo = rank, distributed.ProcessGroupGloo(store, number, size, timeout)

    def _on_host(self, tensors: List[Any]) -> List[Any]:
        counted, self._rank.counts = self._rank.counts, False
        try:
            return [tensor.detach().cpu() for tensor in tensors]
        finally:
            self._rank.counts = counted

    def _back(self, tensors: List[Any], results: List[Any]) -> Any:
        with torch.no_grad():
            for tensor, result in zip(tensors, results):
                tensor.detach().copy_(result)
        return done(tensors)

    def allreduce(self, tensors: List[Any], opts: Any = None) -> Any:
        for tensor in tensors:
            if tensor.dtype in self._rank.refused:
                raise RuntimeError(f"HCCL AllReduce: Unsupported data type {tensor.dtype}")
        self._begun += 1
        own = distributed.AllreduceOptions()
        own.reduceOp = getattr(opts, "reduceOp", distributed.ReduceOp.SUM)
        if self._rank.waits:
            # The device reduces later, in its own order.
            self._rank.extension.pend(1)
            self._rank.queue.put((self, tensors, own))
            return done(tensors)
        results = self._on_host(tensors)
        self.gloo.allreduce(results, own).wait()
        return self._back(tensors, results)

    def broadcast(self, tensors: List[Any], opts: Any = None) -> Any:
        results = self._on_host(tensors)
        self.gloo.broadcast(results, opts or distributed.BroadcastOptions()).wait()
        return self._back(tensors, results)

    def allgather(self, outputs: List[List[Any]], inputs: List[Any], opts: Any = None) -> Any:
        results = [self._on_host(output) for output in outputs]
        self.gloo.allgather(results, self._on_host(inputs)).wait()
        for output, result in zip(outputs, results):
            self._back(output, result)
        return done(outputs[0])

    def barrier(self, opts: Any = None) -> Any:
        self.gloo.barrier().wait()
        return done([])

    def getBackendName(self) -> str:
        return BACKEND

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return self._begun
