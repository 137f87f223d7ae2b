"""Writes the parts of README.md that come from the matrix and the settings: ``python -m tests.support.readme``."""

from __future__ import annotations

from pathlib import Path
from typing import Dict

from ddpfix import matrix, settings

README = Path(__file__).resolve().parent.parent.parent / "README.md"


def versions() -> str:
    """One line a row of the matrix."""
    whole = matrix.load()
    lines = ["| cure | toolkit | versions | | tested on |", "|---|---|---|---|---|"]
    for patch in whole.patches.values():
        for row in whole.rows_of(patch.id):
            tested = ", ".join(map(str, row.tested)) or "-"
            lines.append(f"| `{patch.id}` | {patch.toolkit} | `{row.versions}` | {row.status} | {tested} |")
    return "\n".join(lines)


def values() -> str:
    """One line a setting."""
    lines = ["| variable | default | values | meaning |", "|---|---|---|---|"]
    for setting in settings.SETTINGS:
        lines.append(f"| `{setting.variable}` | {setting.default} | {setting.accepted} | {setting.meaning} |")
    return "\n".join(lines)


def filled(text: str) -> str:
    """The README with its generated parts made anew."""
    parts: Dict[str, str] = {"versions": versions(), "settings": values()}
    for name, table in parts.items():
        begin, end = f"<!-- {name}: generated -->", f"<!-- {name}: end -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}\n{table}\n{end}{after}"
    return text


if __name__ == "__main__":
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")
