"""What the project weighs: ``python -m tests.support.ledger``."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

from ddpfix.matrix import loader
from ddpfix.settings.reading import SETTINGS
from tests.support import readme, registries

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("ddpfix", "patches")
# A file with fewer lines is rarely worth one of its own.
_SHORT = 60
_GENERATED = re.compile(r"\[\[\[cog.*?\[\[\[end\]\]\]", re.DOTALL)


def sources(*folders: str) -> Iterator[Path]:
    """The Python files of some folders of the project."""
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def lines(*folders: str) -> int:
    """The lines of the Python files of some folders."""
    return sum(_lines(path) for path in sources(*folders))


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def words() -> int:
    """The words of the docs that are written by hand."""
    texts = (page.read_text(encoding="utf-8") for page in sorted(readme.DOCS.rglob("*.md")))
    return sum(len(_GENERATED.sub("", text).split()) for text in texts)


def by_folder(top: str) -> Dict[str, int]:
    """The lines of each folder directly below one; its own files are under its own name."""
    found: Dict[str, int] = {}
    for path in sources(top):
        parts = path.relative_to(ROOT).parts
        name = "/".join(parts[: min(2, len(parts) - 1)])
        found[name] = found.get(name, 0) + _lines(path)
    return found


def rows() -> List[Tuple[str, int]]:
    """The sums, then the lines of each folder."""
    short = [path for path in sources(*PRODUCT) if _lines(path) < _SHORT]
    sums = [
        ("lines of ddpfix and patches", lines(*PRODUCT)),
        ("lines of tests", lines("tests")),
        ("patches, by id", len(loader.load().patches)),
        ("settings", len(SETTINGS)),
        ("registries at module level", len(registries.found())),
        (f"files of ddpfix and patches under {_SHORT} lines", len(short)),
        ("words of docs written by hand", words()),
    ]
    return [*sums, *(item for top in (*PRODUCT, "tests") for item in by_folder(top).items())]


if __name__ == "__main__":
    sys.stdout.write("".join(f"{number:>7,}  {name}\n" for name, number in rows()))
