"""One rank: it runs a program, and records what the program returns and what is left of it."""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import os
import random
import re
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Dict, Iterator, Tuple

from tests.harm import program as programs

# Seconds in which threads that end by themselves are waited for, and those after which their number is taken as it is.
SETTLE, STILL = 4.0, 0.6
_SEED = 1234


def main(name: str, record: str) -> None:
    """Run a program of :mod:`tests.harm.kinds`, and write its record into a file."""
    program = programs.one(name)
    if program.needs:
        importlib.import_module(program.needs)
    if program.run is None:
        _run_script(program)
    else:
        _run_function(program, Path(record))


def _run_script(program: programs.Program) -> None:
    """Make a script the main module, as the interpreter does."""
    path = programs.SCRIPTS / program.script
    module = type(sys)("__main__")
    module.__file__ = str(path)
    sys.modules["__main__"] = module
    sys.argv[:] = [str(path), *program.arguments]
    sys.path.insert(0, str(path.parent))
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module.__dict__)


def _run_function(program: programs.Program, record: Path) -> None:
    import numpy
    import torch
    import torch.distributed as dist

    random.seed(_SEED)
    numpy.random.seed(_SEED)
    torch.manual_seed(_SEED)
    if program.group:
        dist.init_process_group("gloo")
    value = program.run(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    found: Dict[str, Any] = {"value": dict(leaves(value))}
    found["streams"] = {
        "torch": _hash(torch.get_rng_state().numpy().tobytes()),
        "numpy": _hash(repr(numpy.random.get_state(legacy=False)).encode()),
        "random": _hash(repr(random.getstate()).encode()),
    }
    if dist.is_initialized():
        dist.destroy_process_group()
    # Of forwards in two threads torch's class keeps one now and then, and with it the threads of its group.
    torch.nn.parallel.DistributedDataParallel._active_ddp_module = None
    found.update(_left())
    record.write_text(json.dumps(found))


def leaves(value: Any, path: str = "") -> Iterator[Tuple[str, str]]:
    """Yield the parts of what a program returned, each with its place and its text, tensors by their bytes."""
    import numpy
    import torch

    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        yield path, f"{type(value).__name__} of {len(value)}"
        for index, each in enumerate(value):
            yield from leaves(each, f"{path}[{index}]")
    elif isinstance(value, torch.Tensor):
        plain = value.detach().cpu().contiguous()
        data = plain.float() if plain.dtype == torch.bfloat16 else plain
        first = [format(each, ".9g") for each in data.flatten()[:3].tolist()]
        yield path, f"{type(value).__name__} {plain.dtype} {tuple(plain.shape)} {first} {_hash(data.numpy().tobytes())}"
    elif isinstance(value, numpy.ndarray):
        yield path, f"array {value.dtype} {value.shape} {_hash(value.tobytes())}"
    elif isinstance(value, bytes):
        yield path, f"{len(value)} bytes {_hash(value)}"
    else:
        yield path, repr(value)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _left() -> Dict[str, Any]:
    """The threads and descriptors that are left once the group is destroyed."""
    # A group's threads end with its last model, and plain torch leaves models that are done to the collector too.
    gc.collect()
    begun, changed, before = time.monotonic(), time.monotonic(), _tasks()
    while before > 1 and time.monotonic() < min(begun + SETTLE, changed + STILL):
        time.sleep(0.1)
        now = _tasks()
        before, changed = now, changed if now == before else time.monotonic()
    names = sorted(re.sub(r"\d+", "N", each.name) for each in threading.enumerate())
    return {"threads": names, "tasks": _tasks(), "files": dict(_descriptors())}


def _tasks() -> int:
    return len(list(Path("/proc/self/task").glob("*")))


def _descriptors() -> Counter[str]:
    """How many open descriptors of each kind this process has."""
    found: Counter[str] = Counter()
    for each in Path("/proc/self/fd").glob("*"):
        try:
            target = os.readlink(each)
        except OSError:
            continue
        found[target.partition(":")[0] if ":" in target else "file"] += 1
    return found


if __name__ == "__main__":
    main(*sys.argv[1:3])
