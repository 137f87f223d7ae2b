"""Command lines, parsed by the release as it is and by the release under ddpfix."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional

import pytest
import speechbrain

import ddpfix
from ddpfix import log

RELEASE = tuple(int(part) for part in str(speechbrain.__version__).split("."))
PATCHES = ("options",)
# In a list, because the fix looks for names that hold the release's parser, and binds them anew.
UNPATCHED: List[Callable[..., Any]] = [speechbrain.parse_arguments]


@dataclass
class Outcome:
    """What became of a command line: its three parts, or the error and what was printed."""

    path: str = ""
    options: Any = None
    overrides: str = ""
    error: Optional[str] = None
    printed: str = ""

    @property
    def values(self) -> Dict[str, Any]:
        return {name: self.options[name] for name in self.options.keys()}  # noqa: SIM118 - RunOptions is no dict

    @property
    def typed(self) -> List[str]:
        names = getattr(self.options, "overridden_args", None)
        return sorted(self.options.typed if names is None else names)

    def get(self, name: str) -> Any:
        return self.values.get(name)


def run(parse: Callable[..., Any], *words: Any) -> Outcome:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
            path, options, overrides = parse([str(word) for word in words])
    except SystemExit as error:
        return Outcome(error=f"exit {error.code}", printed=printed.getvalue())
    except Exception as error:
        return Outcome(error=type(error).__name__, printed=str(error))
    return Outcome(path, options, overrides)


def unpatched(*words: Any) -> Outcome:
    return run(UNPATCHED[0], *words)


def patched(*words: Any) -> Outcome:
    return run(speechbrain.parse_arguments, *words)


@pytest.fixture
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@contextlib.contextmanager
def active(**settings: Any) -> Iterator[None]:
    """ddpfix switched on in this process, late."""
    ddpfix.activate(**settings)
    try:
        yield
    finally:
        ddpfix.deactivate()


@contextlib.contextmanager
def log_lines() -> Iterator[List[str]]:
    """The lines that ddpfix logs in this context."""
    lines: List[str] = []
    original = log.info, log.warning
    log.info = log.warning = lines.append  # type: ignore[assignment]
    try:
        yield lines
    finally:
        log.info, log.warning = original


def write(folder: Path, text: str, name: str = "train.yaml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def load(outcome: Outcome) -> Dict[str, Any]:
    """hparams, as a recipe loads them."""
    from hyperpyyaml import load_hyperpyyaml

    with open(outcome.path) as file:
        return dict(load_hyperpyyaml(file, outcome.overrides))


def brain(run_opts: Any, hparams: Any) -> Any:
    import torch

    return speechbrain.Brain(modules={"linear": torch.nn.Linear(1, 1)}, hparams=hparams, run_opts=run_opts)


def as_unpatched(run_opts: Any) -> Any:
    """Run options as plain data, for comparisons."""
    return dataclasses.asdict(run_opts) if dataclasses.is_dataclass(run_opts) else dict(run_opts)  # type: ignore[arg-type]
