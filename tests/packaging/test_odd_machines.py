"""Machines on which little is as usual: flags of the interpreter, a bare environment, another system."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Optional, Sequence

import pytest

from ddpfix import __version__
from tests.activation import support
from tests.activation.support import Place

pytestmark = pytest.mark.packaging
LONG = pytest.mark.sampled(inside=False, cells=True)
# Two ranks with different gradients: DDP averages them, and a layer that one of them leaves out is finalized.
TRAINS = """
import {auto}
import sys, tempfile, os
import torch
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False)
    def forward(self, x):
        return self.used(x).sum()

def rank(number, store, out):
    distributed.init_process_group("gloo", store=distributed.FileStore(store, 2), rank=number, world_size=2)
    torch.manual_seed(3)
    model = DistributedDataParallel(Model())
    try:
        for step in range(3):
            model.zero_grad()
            model(torch.full((1, 2), float(number + step))).backward()
        ours = "ddpfix" in sys.modules and sys.modules["ddpfix"].report().active
        text = " ".join(map(str, [ours, *model.module.used.weight.grad.flatten().tolist()]))
    except RuntimeError as error:
        text = f"RuntimeError {{error}}"
    with open(f"{{out}}.{{number}}", "w", encoding="utf-8") as file:
        file.write(text)
    distributed.destroy_process_group()

if __name__ == "__main__":
    folder = sys.argv[1]
    multiprocessing.start_processes(
        rank, (os.path.join(folder, "store"), os.path.join(folder, "out")), nprocs=2, start_method="spawn"
    )
"""
# The mean over ranks of the inputs of the last step, 2 and 3, computed by hand.
GRADIENTS = "True 2.5 2.5 2.5 2.5"
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}


def train(python: Sequence[object], folder: Path, env: Dict[str, str], auto: str = "ddpfix.auto") -> List[str]:
    """What both of two spawned ranks have written."""
    for old in (*folder.glob("out.*"), *folder.glob("store*")):
        old.unlink()
    program = folder / "train.py"
    program.write_text(TRAINS.format(auto=auto), encoding="utf-8")
    done = support.start([*python, program, folder], env, folder)
    assert done.returncode == 0, done.stderr
    return [(folder / f"out.{rank}").read_text(encoding="utf-8") for rank in range(2)]


@LONG
def test_spawned_ranks_train_and_without_ddpfix_they_do_not(real: Place, tmp_path: Path) -> None:
    stock = train([real.python], tmp_path, real.env(), auto="os")
    assert any("Expected to have finished reduction" in text for text in stock), stock
    assert train([real.python], tmp_path, real.env()) == [GRADIENTS] * 2


@LONG
@pytest.mark.parametrize("flags", [["-O"], ["-OO"], ["-W", "error"], ["-X", "dev"]], ids=" ".join)
def test_flags_of_the_interpreter(flags: List[str], real: Place, tmp_path: Path) -> None:
    if "-W" in flags:
        # What torch itself warns of, as a program without ddpfix shows, is none of ours.
        done = real.run(*flags, "-c", "import torch, torch.nn.parallel, torch.multiprocessing")
        assert done.returncode == 0, f"NOT TRIED: torch alone does not import under -W error: {done.stderr}"
    for code in ("import ddpfix.auto, torch.nn.parallel", "import ddpfix.auto, torch; import ddpfix.cli.main"):
        done = real.run(*flags, "-c", code)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    support.succeed([real.python, *flags, "-m", "ddpfix", "plan"], real.env(), tmp_path)
    run = [real.python, *flags, "-m", "ddpfix", "run", "-c", "import ddpfix, torch; print(ddpfix.report().active)"]
    assert support.succeed(run, real.env(), tmp_path) == "True\n"
    assert train([real.python, *flags], tmp_path, real.env()) == [GRADIENTS] * 2


@LONG
@pytest.mark.parametrize(
    "more",
    [ASCII, {"HOME": None}, {"HOME": "/nonexistent"}, {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null"}],
    ids=["ascii", "no home", "no such home", "a home that is no folder"],
)
def test_a_bare_environment(more: Dict[str, Optional[str]], real: Place, tmp_path: Path) -> None:
    env = real.env(**more)
    for words in (["plan"], ["plan", "--all"], ["plan", "--json"], ["explain", "torch.flag"], ["doctor", "--json"]):
        done = support.start([real.python, "-m", "ddpfix", *words], env, tmp_path)
        assert "Traceback" not in done.stderr and done.stdout, (words, done.stderr)
        if more is ASCII:
            assert done.stdout.isascii() and done.stderr.isascii(), words
    assert train([real.python], tmp_path, env) == [GRADIENTS] * 2


def test_without_rich_a_process_is_patched_and_a_command_says_what_to_install(installed: Place, tmp_path: Path) -> None:
    (tmp_path / "rich").mkdir()
    missing = "raise ModuleNotFoundError(\"No module named 'rich'\", name='rich')\n"
    (tmp_path / "rich" / "__init__.py").write_text(missing, encoding="utf-8")
    env = installed.env(PYTHONPATH=str(tmp_path))
    for words in (["plan"], ["plan", "--json"], ["explain", "torch.flag"], ["doctor"]):
        done = support.start([installed.python, "-m", "ddpfix", *words], env, tmp_path)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert "needs rich: " in done.stderr and "pip install rich" in done.stderr
    code = "import ddpfix.auto, torch, ddpfix; print(ddpfix.report().active)"
    assert support.succeed([installed.python, "-c", code], env, tmp_path) == "True\n"
    assert support.succeed([installed.python, "-m", "ddpfix", "run", "-c", code], env, tmp_path) == "True\n"


def test_site_packages_that_cannot_be_written(
    wheel: Path, requirements: Path, torch_folder: Path, tmp_path: Path
) -> None:
    """No byte code can be left there; a user whom no right stops runs with a file in the place of its folders."""
    place = support.new_place(tmp_path / "place")
    folder = support.unpack(wheel, place)
    place.link(requirements, torch_folder)
    for each in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        (each / "__pycache__").touch()
        each.chmod(0o555)
    before = place.files()
    try:
        done = place.run("-c", "import torch, ddpfix; print(ddpfix.report().active)", DDPFIX="1")
        assert (done.stdout, done.stderr) == ("True\n", "")
        assert f"ddpfix {__version__}" in support.succeed([place.python, "-m", "ddpfix", "plan"], place.env(), tmp_path)
        assert [name for name in set(place.files()) - set(before) if "ddpfix" in name] == []
    finally:
        for each in (path for path in [folder, *folder.rglob("*")] if path.is_dir()):
            each.chmod(0o755)


# Modules and functions that Windows lacks. Libraries have been imported before, as they are on this system.
WINDOWS = """
import importlib, os, pkgutil, select, signal, sys
import argparse, asyncio, multiprocessing, subprocess, tempfile
import packaging.version, rich.console, rich.live, rich.progress, rich.table, torch, torch._dynamo, yaml
import torch.distributed.fsdp, torch.distributed.run, torch.nn.parallel, torch.utils.checkpoint, torch.utils.data
for name in ("transformers", "accelerate", "plotly.graph_objects", "requests", "unearth", "remotezip"):
    try:
        importlib.import_module(name)
    except ImportError:
        pass
for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "readline", "curses"):
    sys.modules[name] = None
GONE = {
    os: "fork forkpty register_at_fork getuid geteuid getgid uname getloadavg sysconf killpg setsid mkfifo getpgid"
    " sched_getaffinity statvfs wait3 wait4 WNOHANG WIFEXITED WEXITSTATUS fchmod chown nice",
    signal: "SIGKILL SIGSTOP SIGCONT SIGUSR1 SIGUSR2 SIGHUP SIGALRM SIGQUIT SIGCHLD SIGPIPE SIGTSTP pthread_sigmask"
    " setitimer alarm pause siginterrupt",
    select: "poll epoll kqueue POLLRDHUP",
}
for module, names in GONE.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
sys.platform = sys.argv[1]
import ddpfix
found = 0
for each in pkgutil.walk_packages(ddpfix.__path__, "ddpfix."):
    if each.name.rpartition(".")[2] not in ("__main__", "sitecustomize", "train"):
        importlib.import_module(each.name)
        found += 1
before = ddpfix.activate().active
from torch import distributed
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
print(before, found > 150)
"""


@LONG
@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_no_call_of_this_system_alone_on_the_import_path(system: str, real: Place, tmp_path: Path) -> None:
    """As far as it can be shown here: every module is imported, and a rank trains, without what Windows lacks."""
    done = real.run("-c", WINDOWS, system, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "True True\n"), done.stderr
