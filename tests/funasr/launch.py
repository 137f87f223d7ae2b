"""Runs FunASR's own training entries on two real ranks, unpatched or under ddpfix, and collects what the ranks saw."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from tests.support import pool, results, scenario

RANK = Path(__file__).with_name("rank.py")
# The edit by hand: the flag is no argument of a process group's (funasr.flag drops it too).
DROP = """
import torch.distributed
group = torch.distributed.init_process_group
torch.distributed.init_process_group = lambda backend, init_method, **kwargs: group(backend, init_method)
"""


@dataclass
class Scenario(scenario.Scenario):
    """One training run."""

    config: Path  # path of the configuration (see :mod:`tests.funasr.recipes`)
    entry: str = "train"
    overrides: Sequence[str] = ()  # hydra overrides, as on a user's command line
    # Arguments of ``ddpfix.activate`` in the child; in an unpatched launch they switch ddpfix on, late.
    settings: Dict[str, str] = field(default_factory=dict)
    before: str = ""  # Python code run just before the entry (the maintainers' edits, for reference runs)
    timeout: float = 60
    keep: bool = False
    script: Optional[Path] = None  # another path of the entry than that of the installed release
    environ: Dict[str, str] = field(default_factory=dict)

    def plan(self, folder: Path) -> Dict[str, Any]:
        script = self.script or package() / "bin" / f"{self.entry}.py"
        arguments = [f"--config-path={self.config.parent}", f"--config-name={self.config.name}"]
        arguments += [f"++output_dir={folder / self.name}", f"hydra.run.dir={folder}", "hydra.output_subdir=null"]
        plan = {name: getattr(self, name) for name in ("name", "settings", "before", "timeout", "keep", "environ")}
        return {**plan, "script": str(script), "arguments": [*arguments, *self.overrides]}


@dataclass
class Result(results.Result):
    """What one rank saw of one scenario; ``kept`` has the final parameters."""

    ddp: List[Dict[str, Any]] = field(default_factory=list)
    batches: List[Dict[str, Any]] = field(default_factory=list)
    steps: List[str] = field(default_factory=list)
    lr: List[float] = field(default_factory=list)

    @property
    def training(self) -> List[Dict[str, Any]]:
        return [batch for batch in self.batches if batch["training"]]


def package() -> Path:
    """The folder of the installed release, without importing it."""
    from importlib.util import find_spec

    spec = find_spec("funasr")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def version() -> str:
    """The installed release."""
    return (package() / "version.txt").read_text().strip()


def entries() -> List[str]:
    return ["train", "train_ds"] if (package() / "bin" / "train_ds.py").exists() else ["train"]


def starts() -> str:
    """Code to run before an entry without ddpfix: train_ds of 1.1.9 gives torch what it refuses, and does not start."""
    return DROP if version() == "1.1.9" else ""


def train(
    scenarios: Sequence[Scenario],
    folder: Path,
    ddpfix: bool,
    environ: Optional[Dict[str, str]] = None,
    stand_in: Optional[bool] = None,
) -> Dict[str, List[Result]]:
    """Run scenarios; without ddpfix, and where it is asked for, on ranks whose calls of CUDA do nothing."""
    faked = not ddpfix if stand_in is None else stand_in
    whole = {**({"DDPFIX": "1"} if ddpfix else {}), **(environ or {}), "TEST_STAND_IN": str(int(faked))}
    return pool.results(RANK, scenarios, folder, 2, whole, Result)
