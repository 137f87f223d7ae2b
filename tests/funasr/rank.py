"""One rank, started by torch elastic: imports FunASR once, then runs each scenario in a forked child of its own.

A scenario is one run of FunASR's own entry, as the script that ``finetune.sh`` starts, from the first line to the last.
Importing FunASR takes ten seconds, training a tiny model one: so the import is shared, and nothing else is.
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Dict, List

# Where requests come from, and where the outcome of the present one goes.
HOME = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
FOLDER = HOME
RANK = int(os.environ.get("RANK", "0"))


class Watcher:
    """Notes what DDP was given, every batch, and a digest of all parameters after every optimizer step."""

    def __init__(self, keep: bool) -> None:
        self.found: Dict[str, Any] = {"ddp": [], "batches": [], "steps": [], "error": None}
        self.keep = keep
        self.model: Any = None

    def attach(self) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel as DDP
        from torch.optim.optimizer import register_optimizer_step_post_hook

        stock = DDP.__init__
        watcher = self

        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            stock(self, *args, **kwargs)
            watcher.wrapped(self)

        DDP.__init__ = init
        register_optimizer_step_post_hook(lambda optimizer, args, kwargs: self.stepped(optimizer))
        self.torch = torch

    def wrapped(self, model: Any) -> None:
        self.model = model
        frozen = [name for name, p in model.module.named_parameters() if not p.requires_grad]
        self.found["ddp"].append({"find_unused": model.find_unused_parameters, "frozen": frozen})
        model.register_forward_pre_hook(self.forward, with_kwargs=True)

    def forward(self, model: Any, args: Any, kwargs: Dict[str, Any]) -> None:
        speech = kwargs.get("speech")
        shape = list(speech.shape[:2]) if speech is not None else None
        lengths = kwargs["speech_lengths"].flatten().tolist() if speech is not None else None
        self.found["batches"].append({"training": model.training, "shape": shape, "lengths": lengths})

    def stepped(self, optimizer: Any) -> None:
        digest = hashlib.sha256()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                digest.update(parameter.detach().cpu().numpy().tobytes())
        self.found["steps"].append(digest.hexdigest()[:16])
        self.found.setdefault("lr", []).append(optimizer.param_groups[0]["lr"])

    def close(self, file: Path) -> None:
        if self.keep and self.model is not None:
            self.torch.save(self.model.module.state_dict(), file.with_suffix(".pt"))
        file.write_text(json.dumps(self.found))


def run(scenario: Dict[str, Any], port: str) -> None:
    """Run one scenario in this (forked) process; never returns."""
    name = scenario["name"]
    screen = os.open(FOLDER / f"{name}.{RANK}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(screen, 1)
    os.dup2(screen, 2)
    watcher = Watcher(scenario.get("keep", False))
    try:
        os.environ.update(scenario["environ"], MASTER_PORT=port, HYDRA_FULL_ERROR="1")
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
        if scenario.get("settings"):
            import ddpfix

            ddpfix.activate(**scenario["settings"])
        watcher.attach()
        if scenario.get("before"):
            exec(compile(scenario["before"], "before", "exec"), {"watcher": watcher, "rank": RANK})
        sys.argv = [scenario["script"], *scenario["arguments"]]
        sys.path[0] = str(Path(scenario["script"]).parent)
        runpy.run_path(scenario["script"], run_name="__main__")
    except BaseException as error:
        traceback.print_exc()
        if not isinstance(error, SystemExit) or error.code:
            watcher.found["error"] = f"{type(error).__name__}: {error}"
    try:
        sys.stdout.flush()
        watcher.close(FOLDER / f"{name}.{RANK}.json")
    finally:
        os._exit(0)


def main() -> None:
    # FunASR's own import comes first, as in its scripts; what replaces torch functions must not be there yet.
    import funasr  # noqa: F401

    # DDP imports this when it is built; two seconds for each child otherwise.
    import torch._dynamo  # noqa: F401

    from tests.funasr import stand_in

    if os.environ["TEST_STAND_IN"] == "1":
        stand_in.cuda()
    signal.signal(signal.SIGTERM, ended)
    number = 0
    while not (HOME / "stop").exists():
        request = HOME / f"request.{number}"
        if request.exists():
            serve(json.loads(request.read_text()))
            (HOME / f"done.{number}.{RANK}").touch()
            number += 1
        time.sleep(0.02)


CHILDREN: List[int] = []


def ended(*_: Any) -> None:
    for child in CHILDREN:
        os.kill(child, signal.SIGKILL)
    os._exit(1)


def serve(request: Dict[str, Any]) -> None:
    """Run the scenarios of one request, one after the other."""
    global FOLDER
    FOLDER = Path(request["folder"])
    os.chdir(FOLDER)
    for number, scenario in enumerate(request["scenarios"]):
        port = agreed_port(number)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            run(scenario, port)
        CHILDREN[:] = [child]
        wait(child, scenario.get("timeout", 60), scenario["name"])
        CHILDREN.clear()


def agreed_port(number: int) -> str:
    """Wait until all ranks have come to this scenario, and learn the port of its process group from rank 0."""
    (FOLDER / f"at.{number}.{RANK}").touch()
    told = FOLDER / f"port.{number}"
    if RANK == 0:
        while not all((FOLDER / f"at.{number}.{rank}").exists() for rank in range(int(os.environ["WORLD_SIZE"]))):
            time.sleep(0.01)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        (FOLDER / f"port.{number}.new").write_text(str(port))
        (FOLDER / f"port.{number}.new").rename(told)
    while not told.exists():
        time.sleep(0.01)
    return told.read_text()


def wait(child: int, seconds: float, name: str) -> None:
    """Wait for the child; one that hangs is killed, and leaves no record."""
    end = time.monotonic() + seconds
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.02)


if __name__ == "__main__":
    main()
