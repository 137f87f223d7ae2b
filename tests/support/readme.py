"""Writes what the README and docs/versions.md take from matrix and settings: ``python -m tests.support.readme``."""

from __future__ import annotations

from pathlib import Path
from typing import Dict

from ddpfix import matrix, settings

README = Path(__file__).resolve().parent.parent.parent / "README.md"
VERSIONS = README.parent / "docs" / "versions.md"


def cures() -> str:
    """One line a cure: which releases it is for."""
    whole = matrix.load()
    lines = ["| cure | cured in | tested on |", "|---|---|---|"]
    for patch in whole.patches.values():
        rows = [row for row in whole.rows_of(patch.id) if row.status == "cured"]
        if not rows:
            # Told by the plan only; its reasons are in docs/versions.md.
            continue
        tested = sorted({version for row in rows for version in row.tested})
        shown = str(tested[0]) if len(tested) == 1 else f"{len(tested)} releases, {tested[0]} to {tested[-1]}"
        ranges = ", ".join(f"`{_readable(str(row.versions))}`" for row in rows)
        lines.append(f"| `{patch.id}`{'' if patch.default else ' (opt-in)'} | {ranges} | {shown} |")
    return "\n".join(lines)


def _readable(specifier: str) -> str:
    # packaging writes the clauses in an order of its own.
    return ",".join(sorted(specifier.split(","), reverse=True))


def versions() -> str:
    """One section a cure, one line a row of the matrix."""
    whole = matrix.load()
    parts = ["# Versions", "Made from `compat_matrix.yaml`, by `python -m tests.support.readme`."]
    for patch in whole.patches.values():
        parts.append(f"## {patch.id}\n\n{patch.problem}")
        lines = ["| versions | | tested on | why |", "|---|---|---|---|"]
        for row in whole.rows_of(patch.id):
            tested = ", ".join(map(str, row.tested)) or "-"
            lines.append(f"| `{_readable(str(row.versions))}` | {row.status} | {tested} | {row.why} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def values() -> str:
    """One line a setting."""
    lines = ["| variable | default | values | meaning |", "|---|---|---|---|"]
    for setting in settings.SETTINGS:
        lines.append(f"| `{setting.variable}` | {setting.default} | {setting.accepted} | {setting.meaning} |")
    return "\n".join(lines)


def filled(text: str) -> str:
    """The README with its generated parts made anew."""
    parts: Dict[str, str] = {"cures": cures(), "settings": values()}
    for name, table in parts.items():
        begin, end = f"<!-- {name}: generated -->", f"<!-- {name}: end -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}\n{table}\n{end}{after}"
    return text


if __name__ == "__main__":
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")
    VERSIONS.parent.mkdir(exist_ok=True)
    VERSIONS.write_text(versions(), encoding="utf-8")
