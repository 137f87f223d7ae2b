"""Starts one child of every kind and prints, as JSON, which of them were under ddpfix. For the tests to start."""

import json
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

KINDS = ("fork", "spawn", "forkserver")
# 2 where ddpfix is active and its finder is there, once.
LOOK = (
    "import sys, torch; m = sys.modules.get('ddpfix'); "
    "seen = bool(m and m.report().active) + sum(type(f).__module__ == 'ddpfix.import_hook' for f in sys.meta_path)"
)
SAY = LOOK + "; print(seen)"


def look(*_: object) -> int:
    space: Any = {}
    exec(LOOK, space)
    return int(space["seen"])


def put_look(queue: Any) -> None:
    queue.put(look())


def started(kind: str) -> int:
    context: Any = multiprocessing.get_context(kind)
    queue = context.Queue()
    process = context.Process(target=put_look, args=(queue,))
    process.start()
    answer: int = queue.get(timeout=60)
    process.join()
    assert process.exitcode == 0
    return answer


def pooled(kind: str) -> int:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(kind)) as pool:
        return pool.submit(look).result(timeout=60)


def output(*words: str) -> int:
    return int(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)


def raw_fork() -> int:
    child = os.fork()
    if child == 0:
        os._exit(10 + look())
    return os.WEXITSTATUS(os.waitpid(child, 0)[1]) - 10


def executed() -> int:
    """os.exec in a forked child: a fresh interpreter in the place of a process."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(write, 1)
        os.execv(sys.executable, [sys.executable, "-c", SAY])
    os.waitpid(child, 0)
    return int(os.read(read, 100))


def main() -> None:
    python = sys.executable
    seen = {"self": look(), "fork of os": raw_fork(), "exec": executed()}
    seen.update({"process " + kind: started(kind) for kind in KINDS})
    seen.update({"pool " + kind: pooled(kind) for kind in ("spawn", "forkserver")})
    seen["subprocess"] = output(python, "-c", SAY)
    seen["shell"] = output("sh", "-c", '"$0" -c "$1"', python, SAY)
    seen["grandchild"] = output(
        python, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SAY!r}])"
    )
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
