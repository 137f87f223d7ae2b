"""What the tests of the trainers share: a small recipe for every release, and code that is run before the entry."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import ddpfix
from ddpfix.matrix import loader
from ddpfix.settings.reading import switch_name
from tests.funasr import launch, recipes

# Ten utterances on two ranks are five micro-batches each (four before 1.0.18, where samplers keep the last one back).
SECONDS = (1.0, 1.1, 1.2, 1.3, 1.4) * 2


# The edit that maintainers advise: the flag, whatever the script says.
BY_HAND = """
from torch.nn.parallel import DistributedDataParallel
def init(self, *args, original=DistributedDataParallel.__init__, **kwargs):
    original(self, *args, **{**kwargs, "find_unused_parameters": True})
DistributedDataParallel.__init__ = init
"""


def release() -> Tuple[int, ...]:
    return tuple(int(part) for part in launch.version().split("."))


def entries() -> List[str]:
    return ["train", "train_ds"] if release() >= (1, 0, 28) else ["train"]


# Two names of the default sampler.
SAMPLER = "BatchSampler" if release() >= (1, 0, 6) else "DynamicBatchLocalShuffleSampler"


def write(folder: Path, **changes: Any) -> Path:
    """A model and a corpus, one utterance a batch and one epoch; returns the configuration's path."""
    changes.setdefault("dataset_conf", {})["batch_size"] = 1
    # Up to 1.0.25 the epochs are 0 to max_epoch.
    changes.setdefault("train_conf", {}).setdefault("max_epoch", 0 if release() < (1, 0, 26) else 1)
    if release() < (1, 0, 6):
        changes["dataset_conf"]["batch_sampler"] = SAMPLER
    if (1, 0, 20) <= release() < (1, 1, 8):
        # In 1.0.28 CIF fires one token too few now and then, and Paraformer dies of it.
        return recipes.write(folder, "Branchformer", seconds=[3 * length for length in SECONDS], **changes)
    config = recipes.write(folder, "Paraformer", seconds=SECONDS, **changes)
    if release() < (1, 0, 6):
        # There the sampler of the validation is built on the training set.
        recipes.corpus(folder, SECONDS, "val")
    return config


def only(*patches: str) -> Dict[str, str]:
    """Variables that leave these fixes and what a CPU needs, so that a run can equal an edit by hand bit for bit."""
    kept = ("funasr.entry", "funasr.cpu", *patches)
    return {switch_name(p): "0" for p in loader.load().patches if p.startswith("funasr.") and p not in kept}


@contextlib.contextmanager
def active(*patches: str, **settings: str) -> Iterator[None]:
    """ddpfix in this process with these fixes only, for the length of a test."""
    import funasr  # noqa: F401

    off: Dict[str, Any] = {name[len("DDPFIX_") :].lower(): value for name, value in only(*patches).items()}
    ddpfix.activate(**{**off, **settings})
    try:
        yield
    finally:
        assert ddpfix.deactivate() == []


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """A process group of this process alone."""
    from torch import distributed

    store = distributed.FileStore(str(folder / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def edited(entry: str, method: str, *replacements: Tuple[str, str]) -> str:
    """Code that edits a method of the entry's trainer in the release's own source text, as a user would by hand."""
    module = "trainer_ds" if entry == "train_ds" else "trainer"
    return f"""
import inspect, textwrap
import funasr.train_utils.{module} as module
source = textwrap.dedent(inspect.getsource(module.Trainer.{method}))
for was, now in {list(replacements)!r}:
    assert source.count(was) == 1, (was, source.count(was))
    source = source.replace(was, now)
names = {{}}
exec(compile(source, "edited", "exec"), vars(module), names)
module.Trainer.{method} = names["{method}"]
"""


def method(name: str) -> str:
    """``train_epoch`` and its like had an underscore before 1.0.18."""
    return name if release() >= (1, 0, 18) else "_" + name


def wrapped_model(code: str) -> str:
    """Code that is run with every model when DDP has wrapped it, as ``wrapper``; it finds ``rank`` and ``recorder``."""
    return f"""
from torch.nn.parallel import DistributedDataParallel
def ready(wrapper, code={code!r}):
    exec(code, {{"wrapper": wrapper, "rank": rank, "recorder": recorder}})
def init(self, *args, original=DistributedDataParallel.__init__, ready=ready, **kwargs):
    original(self, *args, **kwargs)
    ready(self)
DistributedDataParallel.__init__ = init
"""


def same_steps(results: Sequence[launch.Result]) -> bool:
    """Whether the ranks had the same parameters after every optimizer step (and there were some)."""
    first, *others = results
    return bool(first.steps) and all(first.steps == other.steps for other in others)


def difference(one: launch.Result, other: launch.Result) -> float:
    """The largest difference between the final parameters of two runs or ranks."""
    import torch

    assert one.kept is not None and other.kept is not None
    a: Dict[str, Any] = torch.load(one.kept)
    b: Dict[str, Any] = torch.load(other.kept)
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)
