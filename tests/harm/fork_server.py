"""An interpreter that has imported torch, plain or under ddpfix, and forks a rank for each line that it reads.

To import torch takes longer than to run most programs. A fork has run nothing yet but imports.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import sys
import tempfile
import threading
import time
from typing import Any, Dict

from tests.harm import rank


def preload(package: str) -> None:
    """Import what DDP's constructor imports, for seconds, and a package more; "" for none."""
    import numpy  # noqa: F401
    import torch._dynamo
    import torch.distributed.optim
    import torch.utils.checkpoint
    import torch.utils.data  # noqa: F401
    from torch.nn.parallel import DistributedDataParallel  # noqa: F401

    if package:
        importlib.import_module(package)


def serve() -> Dict[str, Any]:
    """Fork a rank for each line until the input is closed, and say which have ended; return the line within a fork."""
    begun: Dict[int, float] = {}
    pending = b""
    while True:
        if select.select([0], [], [], 0.05)[0]:
            data = os.read(0, 65536)
            if not data:
                raise SystemExit
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                process = os.fork()
                if process == 0:
                    return dict(json.loads(line))
                begun[process] = time.monotonic()
                _say({"job": json.loads(line)["job"], "started": process})
        while begun:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                break
            code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
            _say({"ended": process, "code": code, "seconds": time.monotonic() - begun.pop(process)})


def _say(words: Dict[str, Any]) -> None:
    os.write(1, json.dumps(words).encode() + b"\n")


def become(job: Dict[str, Any]) -> None:
    """In a fork: take on the environment, the folder and the files of a rank."""
    os.setsid()
    for number, name, how in ((0, os.devnull, os.O_RDONLY), (1, job["out"], os.O_WRONLY), (2, job["err"], os.O_WRONLY)):
        descriptor = os.open(name, how | (os.O_CREAT | os.O_APPEND if number else 0), 0o644)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.update(job["environ"])
    os.chdir(job["folder"])
    tempfile.tempdir = None
    # Python before 3.13 keeps the parent's number of the main thread.
    renumber = getattr(threading.main_thread(), "_set_native_id", None)
    if renumber is not None:
        renumber()


def main() -> None:
    preload(sys.argv[1])
    job = serve()
    become(job)
    rank.main(job["name"], job["record"])


if __name__ == "__main__":
    main()
