"""The registry of training programs, and what is declared of each."""

from __future__ import annotations

import importlib
import pydoc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Sequence, Set

from packaging.version import Version

if TYPE_CHECKING:
    from tests.late.loops.loop import Loop

# The files, of which some have several themes.
FILES = (
    "exceptions",
    "gradients",
    "lifecycle",
    "models",
    "optimizers",
    "outputs",
    "repeated",
)
# What DDP and its reducer say when they notice that something is missing, or that something came twice.
UNFINISHED = "Expected to have finished reduction"
TWICE = "mark a variable ready only once"
KINDS: Dict[str, Kind] = {}


@dataclass
class Kind:
    """A training program."""

    name: str  # of the function
    theme: str  # the file that it stands in, or what is declared
    train: Callable[[Loop], None]  # the program
    # What plain torch does: "right", "error", "hangs" (ranks wait for each other until a time limit), "parts" (replicas
    # differ in silence) or "wrong" (replicas agree, on something else than averaged gradients).
    plain: str = "right"
    # What ddpfix does where plain torch is not right: "exact", "error", "either" or "plain" (the same as plain torch,
    # whatever that is; the docstring says why).
    ours: str = "exact"
    # A regular expression, found in an error of at least one rank where ours is "error" or "either", and in a log where
    # ours is "plain".
    cause: str = ""
    plain_cause: str = ""  # the same for plain torch
    three: bool = False  # whether the program is run on three ranks as well
    close: float = 0.0  # how far from the reference parameters may be; 0 is bit for bit
    close_three: float = 2e-6  # the same on three ranks, whose sums are rounded in another order
    traced: bool = True  # whether a run that fails must have trained as the reference until then
    counted: bool = True  # whether what is sent is compared with plain torch
    activated: bool = True  # whether ddpfix is on from the start; otherwise the program does it
    needs: Sequence[str] = ()  # what torch must have: "2.3", or a dotted name
    timeout: float = 12  # seconds after which a rank is killed
    wait: float = 6  # seconds after which a collective gives up

    @property
    def reason(self) -> str:
        return (self.train.__doc__ or "").strip()

    def closeness(self, size: int) -> float:
        return self.close if size == 2 else max(self.close, self.close_three)


def kind(**declared: Any) -> Callable[[Callable[[Loop], None]], Callable[[Loop], None]]:
    """Register a program."""

    def registered(train: Callable[[Loop], None]) -> Callable[[Loop], None]:
        add(train.__name__, train, **declared)
        return train

    return registered


def add(name: str, train: Callable[[Loop], None], theme: str = "", **declared: Any) -> None:
    """Register a program under a name that is made from others, or with a function of another file."""
    assert name not in KINDS, f"two programs are called {name}"
    assert train.__doc__, f"{name} has no docstring"
    theme = theme or train.__module__.rsplit(".", 1)[1]
    KINDS[name] = Kind(name, theme, train, **declared)


def load() -> Dict[str, Kind]:
    """All programs; some of them need torch.distributed imported."""
    for file in FILES:
        importlib.import_module(f"tests.late.loops.{file}")
    return KINDS


def sample() -> Set[str]:
    """The programs that the README's command runs: the first of each theme with each outcome, and what it needs."""
    first: Dict[object, str] = {}
    for name, each in load().items():
        first.setdefault((each.theme, each.plain, each.ours, tuple(each.needs)), name)
    return set(first.values())


def missing(needs: Sequence[str]) -> Optional[str]:
    """The first of the needs that this torch does not meet."""
    return next((need for need in needs if not _has(need)), None)


def _has(need: str) -> bool:
    if need[0].isdigit():
        import torch

        return Version(torch.__version__).release >= Version(need).release
    return pydoc.locate(need) is not None
