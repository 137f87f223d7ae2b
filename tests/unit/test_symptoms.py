"""The texts of docs/symptoms.md are those that torch and Lightning print; tests/late/test_symptoms.py runs each row."""

from __future__ import annotations

import mmap
import re
from importlib import util
from pathlib import Path
from typing import Iterator, List

import pytest

from tests.support import readme

PAGE = readme.DOCS / "symptoms.md"
# Numbers and what stands for a number; behind them, another word of the text begins.
_VARIABLE = re.compile(r"-?[0-9]+[0-9 ]*|`, `")
# Not in a torch for the CPU alone: NCCL's, CUDA's, and that of C++ itself.
_NOT_HERE = ("Watchdog caught", "CUDA out of memory", "terminate called")


def texts(part: int) -> List[str]:
    """The texts in the first column of the tables: of torch and Lightning (0), or ddpfix's own (2)."""
    shown = PAGE.read_text(encoding="utf-8").partition("## ddpfix does nothing")[part]
    rows = [line.split("|")[1] for line in shown.splitlines() if line[:3] == "| `"]
    assert part == 0 or len(rows) == 4
    return [text for row in rows for text in re.findall(r"`([^`]+)`", row)]


def longest_part(text: str) -> str:
    """What torch and ddpfix put together from parts has its longest one."""
    return max(_VARIABLE.split(text), key=len).strip()


def _files() -> Iterator[Path]:
    """Where torch and Lightning have their texts."""
    torch = Path(str(util.find_spec("torch").origin)).parent  # type: ignore[union-attr]
    yield from torch.glob("lib/libtorch*")
    yield from (torch / "distributed" / "elastic" / "multiprocessing").rglob("*.py")
    lightning = util.find_spec("lightning")
    if lightning is not None:
        yield Path(str(lightning.origin)).parent / "pytorch" / "strategies" / "ddp.py"


def _has(file: Path, text: bytes) -> bool:
    with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as held:
        return held.find(text) >= 0


@pytest.mark.parametrize("text", [text for text in texts(0) if not text.startswith(_NOT_HERE)])
def test_the_text_is_what_is_printed(text: str) -> None:
    if text.startswith("It looks like"):
        pytest.importorskip("lightning")
        text = "It looks like your LightningModule has parameters that were not used in producing the loss returned"
    if text.startswith("torch."):
        text = text.rpartition(".")[2]
    longest = longest_part(text)
    longest = "Signal {" if longest.startswith(("Signal", "(SIG")) else longest
    assert len(longest) >= 8 and any(_has(file, longest.encode()) for file in _files()), longest


def test_what_ddpfix_itself_says_is_in_its_sources() -> None:
    root = readme.README.parent
    files = [file for name in ("ddpfix", "patches") for file in (root / name).rglob("*.py")]
    # A text that goes on in the next line of the source.
    sources = re.sub(r'"\s+f?"', "", " ".join(file.read_text(encoding="utf-8") for file in files))
    for longest in map(longest_part, texts(2)):
        assert len(longest) >= 20 and longest in sources, longest
