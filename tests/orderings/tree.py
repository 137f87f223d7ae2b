"""Walks the tree of all orderings: every step is made in a process of its own, forked from the one before it.

A forked process has exactly the history of its path through the tree, and orderings that begin alike share their
imports. Run as a script: reads orderings from stdin (one a line), writes one line of JSON a step.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import inspect
import json
import os
import sys
import traceback
from types import FunctionType, ModuleType
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

WAVLM = "transformers.models.wavlm.modeling_wavlm"
HOME = "torch.nn.parallel.distributed"
C10D = "torch.distributed.distributed_c10d"
OBSERVED = (
    HOME,
    C10D,
    "torch.distributed",
    "torch.distributed.fsdp.fully_sharded_data_parallel",
    "torch.distributed.fsdp._fully_shard._fully_shard",
    "torch.utils.checkpoint",
    "torch.nn.utils.clip_grad",
    "torch.amp.grad_scaler",
    "torch.optim.optimizer",
    "transformers.utils.output_capturing",
    "transformers.modeling_utils",
    "accelerate.accelerator",
    "accelerate.utils.dataclasses",
    WAVLM,
)
# Our layers, outermost first.
LAYERS = {
    "__init__": ["ddp"],
    "forward": ["ddp"],
    "init_process_group": ["process_group"],
}
# Before the program asks for what they are for.
DOORS: Dict[str, List[str]] = {"__init__": ["gate"], "forward": [], "init_process_group": ["gate"]}
# With the gate open: what was there before ddpfix has no door.
BEHIND: Dict[str, List[str]] = {**LAYERS, "__init__": ["gate", "ddp"], "init_process_group": ["gate", "process_group"]}
# Only the toolkits themselves have to be imported in each order; what they need from elsewhere may be there before.
HEAVY = ("numpy", "scipy.optimize", "sympy", "huggingface_hub", "tokenizers", "regex", "httpx", "safetensors", "psutil")


class Observer:
    """Records what a module holds right after its code has run, when nobody has patched it yet."""

    def __init__(self) -> None:
        self.seen: Dict[Tuple[str, Optional[str]], Dict[str, Any]] = {}

    def find_spec(self, name: str, path: Optional[Sequence[str]] = None, target: Any = None) -> Any:
        if name not in OBSERVED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        loader: Any = spec.loader
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            loader.__dict__.pop("exec_module", None)
            original(module)
            self.note(module)

        loader.exec_module = exec_module
        return spec

    def note(self, module: ModuleType) -> None:
        self.seen[module.__name__, None] = dict(vars(module))
        for name, value in list(vars(module).items()):
            if isinstance(value, type) and value.__module__ == module.__name__:
                self.seen[module.__name__, name] = dict(vars(value))

    def changed(self) -> Iterator[str]:
        """Functions and descriptors that have changed, and names of ours that were left behind."""
        kinds = (FunctionType, classmethod, staticmethod, property)
        for (module, name), before in self.seen.items():
            owner = sys.modules[module] if name is None else self.seen[module, None][name]
            now = vars(owner)
            for key, value in before.items():
                if isinstance(value, kinds) and now.get(key) is not value:
                    yield f"{module}.{name + '.' if name else ''}{key}"
            # A class may have got what it inherited before.
            more = (key for key in now if key not in before and name and isinstance(now[key], kinds))
            yield from (f"{module}.{name}: {key} is left" for key in [*more, *(key for key in now if "ddpfix" in key)])


class World:
    """What is expected after the steps so far, and the steps themselves."""

    def __init__(self) -> None:
        self.observer = Observer()
        self.path: List[str] = []
        self.armed = self.active = self.opened = False
        # Whether ddpfix was there before what it changes.
        self.has_doors = False
        # The layers on DistributedDataParallel.__init__, outermost first.
        self.chain: List[str] = []
        self.lost = 0
        self.copies: List[ModuleType] = []
        self.undo_problems: List[str] = []

    # The steps.

    def T(self) -> None:
        self._import("torch.nn.parallel")

    def W(self) -> None:
        self._import(WAVLM)

    def A(self) -> None:
        import ddpfix

        ddpfix.activate()
        self._activated(HOME not in sys.modules)

    R = A

    def O(self) -> None:  # noqa: E743
        import ddpfix.auto  # noqa: F401

        self._activated(HOME not in sys.modules)

    def E(self) -> None:
        os.environ["DDPFIX"] = "1"
        from ddpfix import _boot

        _boot.start()
        self.armed = True

    def U(self) -> None:
        import ddpfix

        self.undo_problems = ddpfix.deactivate()
        self.armed = self.active = self.opened = False
        self.chain = [layer for layer in self.chain if layer == "theirs"]

    def G(self) -> None:
        """The first call of a place of the gate."""
        import torch

        with contextlib.suppress(RuntimeError, ValueError):
            # There is no such way to meet.
            torch.distributed.init_process_group("gloo", init_method="nowhere://", rank=0, world_size=1)
        if self.active and not self.opened:
            self.opened = True
            self.chain = [each for layer in self.chain for each in ([layer, "ddp"] if layer == "gate" else [layer])]

    def P(self) -> None:
        """As ddtrace does."""
        import wrapt

        wrapt.wrap_function_wrapper("torch.nn.parallel.distributed", "DistributedDataParallel.__init__", theirs)
        self.chain.insert(0, "theirs")

    def Q(self) -> None:
        """As ddtrace does: the outermost layer is removed, whoever's it is."""
        owner = ddp()
        setattr(owner, "__init__", getattr(owner, "__init__").__wrapped__)  # noqa: B009, B010
        self.lost += self.chain.pop(0) != "theirs"

    def S(self) -> None:
        copy = ModuleType(f"user_{len(self.copies)}")
        sys.modules[copy.__name__] = copy
        exec("from torch.distributed import init_process_group as begin", copy.__dict__)
        self.copies.append(copy)

    def _import(self, name: str) -> None:
        is_first = HOME not in sys.modules
        importlib.import_module(name)
        if self.armed and not self.active:
            self._activated(is_first)
        elif self.active:
            self._ours()

    def _activated(self, is_first: bool) -> None:
        self.active = self.armed = True
        self.has_doors, self.opened = is_first, not is_first
        self._ours()

    def _ours(self) -> None:
        if HOME in sys.modules and not self.chain_has_ours() and not self.lost:
            self.chain = [*self.layers["__init__"], *self.chain]

    @property
    def layers(self) -> Dict[str, List[str]]:
        """Our layers at present, outermost first."""
        if not self.active:
            return {name: [] for name in LAYERS}
        return (BEHIND if self.opened else DOORS) if self.has_doors else LAYERS

    def chain_has_ours(self) -> bool:
        return any(layer != "theirs" for layer in self.chain)

    # The checks: each yields what is wrong.

    def problems(self) -> Iterator[str]:
        yield from self._report()
        if HOME in sys.modules:
            yield from self._ddp()
            yield from self._group()
        if WAVLM in sys.modules:
            yield from self._wavlm()
        if not self.active:
            yield from self._residue()

    def _report(self) -> Iterator[str]:
        import ddpfix

        report = ddpfix.report()
        yield from expect("report().active", report.active, self.active)
        if self.path[-1] == "U":
            yield from expect("what undo could not take back", self.undo_problems, [])
            self.lost = 0
        if report.active:
            states = {entry.id: entry.state for entry in report.patches}
            done = "applied" if self.opened else "registered"
            yield from expect("torch.flag", states["torch.flag"], done if HOME in sys.modules else "armed")
            # Models that are wrapped are looked at as soon as DDP is there.
            is_covered = self.opened and WAVLM in sys.modules
            waits = "registered" if HOME in sys.modules else "armed"
            yield from expect(
                "transformers.layerdrop", states["transformers.layerdrop"], "applied" if is_covered else waits
            )
            yield from expect("failed", [name for name, state in states.items() if state == "failed"], [])

    def _ddp(self) -> Iterator[str]:
        owner = ddp()
        found, below = layers(vars(owner)["__init__"])
        yield from expect("the layers on DDP.__init__", found, self.chain)
        yield from expect("the function below them is the original", below is self._original(HOME, "__init__"), True)
        forward = vars(owner)["forward"]
        names = []
        while hasattr(forward, "__wrapped__"):
            names.append(forward.__code__.co_filename.rpartition("/")[2].partition(".")[0])
            forward = forward.__wrapped__
        yield from expect("the layers on DDP.forward", names, self.layers["forward"])
        yield from expect("DDP.forward is the original", forward is self._original(HOME, "forward"), True)

    def _original(self, module: str, attribute: str) -> Any:
        return self.observer.seen[module, "DistributedDataParallel"][attribute]

    def _group(self) -> Iterator[str]:
        name = "init_process_group"
        now = vars(sys.modules[C10D])[name]
        original = self.observer.seen[C10D, None][name]
        found, below = layers(now)
        yield from expect(f"the layers on {name}", found, self.layers[name])
        yield from expect(f"{name} leads to the original", below is original, True)
        yield from expect("torch.distributed's copy", sys.modules["torch.distributed"].__dict__[name] is now, True)
        for copy in self.copies:
            yield from expect(f"the copy in {copy.__name__}", copy.__dict__["begin"] is now, True)

    def _wavlm(self) -> Iterator[str]:
        from ddpfix.layerdrop import cover, shared_skips

        encoder = sys.modules[WAVLM].__dict__["WavLMEncoder"]
        original = self.observer.seen[WAVLM, "WavLMEncoder"]["forward"]
        yield from expect("WavLMEncoder is covered", encoder in cover.COVERED, self.opened)
        yield from expect("WavLMEncoder.forward is patched", vars(encoder)["forward"] is not original, self.opened)
        base: Any = sys.modules["transformers.modeling_utils"].__dict__["PreTrainedModel"]
        name = "_set_gradient_checkpointing"
        now = vars(base)[name]
        original = self.observer.seen["transformers.modeling_utils", "PreTrainedModel"][name]
        found, below = layers(now)
        yield from expect(f"the layers on {name}", len(found), int(self.active))
        yield from expect(f"{name} leads to the original", below is original, True)
        yield from expect("extensions", len(shared_skips.EXTENSIONS), 2 * int(self.opened))

    def _residue(self) -> Iterator[str]:
        allowed = [f"{HOME}.DistributedDataParallel.__init__"] if self.chain else []
        yield from expect("what is not the original", list(self.observer.changed()), allowed)
        for module, name in (
            ("layerdrop.cover", "COVERED"),
            ("layerdrop.shared_skips", "EXTENSIONS"),
            ("models.wrap_hooks", "HOOKS"),
            ("patching.layers", "CHANGES"),
        ):
            held = getattr(sys.modules.get(f"ddpfix.{module}"), name, ())
            held = getattr(held, "in_place", held)
            yield from expect(f"ddpfix.{module}.{name}", len(held), 0)
        optimizer = sys.modules.get("torch.optim.optimizer")
        for hooks in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
            yield from expect(hooks, len(getattr(optimizer, hooks, ())), 0)
        if not self.armed:
            finders = [finder for finder in sys.meta_path if type(finder).__module__ == "ddpfix.import_hook"]
            yield from expect("finders", len(finders), 0)


def expect(what: str, found: Any, wanted: Any) -> Iterator[str]:
    if found != wanted:
        yield f"{what}: {found!r}, not {wanted!r}"


def ddp() -> Any:
    return sys.modules[HOME].__dict__["DistributedDataParallel"]


def layers(function: Any) -> Tuple[List[str], Any]:
    """The files of the layers on a function, outermost first, and the function below them."""
    found = []
    while True:
        is_theirs = hasattr(function, "_self_wrapper")
        nonlocals = {} if is_theirs else inspect.getclosurevars(function).nonlocals
        if "gate" in nonlocals:
            found.append("gate")
        elif is_theirs:
            found.append("theirs")
        elif "wrapper" in nonlocals:
            found.append(nonlocals["wrapper"].__module__.rpartition(".")[2])
        else:
            break
        function = nonlocals.get("then", function.__wrapped__)
    return found, function


def theirs(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return wrapped(*args, **kwargs)


Tree = Dict[str, Any]


def grow(orderings: List[List[str]]) -> Tree:
    tree: Tree = {}
    for ordering in orderings:
        branch = tree
        for step in ordering:
            branch = branch.setdefault(step, {})
    return tree


def walk(world: World, tree: Tree, at_once: int = 1) -> None:
    """Make every step of this branch in a forked process, ``at_once`` of them at a time."""
    running = 0
    for step, branch in tree.items():
        if running == at_once:
            os.wait()
            running -= 1
        sys.stdout.flush()
        if os.fork() == 0:
            try:
                make(world, step, branch)
            finally:
                sys.stdout.flush()
                os._exit(0)
        running += 1
    for _ in range(running):
        os.wait()


def make(world: World, step: str, branch: Tree) -> None:
    world.path.append(step)
    try:
        getattr(world, step)()
        problems = list(world.problems())
    except BaseException:
        problems = [traceback.format_exc()]
    # One write that fits into a pipe's buffer is never mixed with another process's.
    problems = [problem[-800:] for problem in problems[:4]]
    line = json.dumps({"path": " ".join(world.path), "problems": problems, "pid": os.getpid()}) + "\n"
    os.write(1, line.encode())
    walk(world, branch)


def main() -> None:
    for name in HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    early = [name for name in ("torch", "transformers", "accelerate", "ddpfix") if name in sys.modules]
    assert not early, early
    world = World()
    sys.meta_path.insert(0, world.observer)
    walk(world, grow([line.split() for line in sys.stdin]), at_once=2)


if __name__ == "__main__":
    main()
