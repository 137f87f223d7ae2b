"""Writes what README and docs take from the matrix, the settings and the code: ``python -m tests.support.readme``."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Iterator, List, Tuple

from ddpfix.matrix import loader, settings
from ddpfix.matrix.model import Patch
from tests.support import rooms

README = Path(__file__).resolve().parent.parent.parent / "README.md"
DOCS = README.parent / "docs"
VERSIONS = DOCS / "versions.md"


def pages() -> Dict[str, List[Patch]]:
    """The patches by the folder that holds their code, which is also the name of a page in docs/.

    One that cures nothing has no code, and goes by its id.
    """
    found: Dict[str, List[Patch]] = {}
    for patch in loader.load().patches.values():
        found.setdefault((patch.code or patch.id).partition(".")[0], []).append(patch)
    return found


def toolkits() -> str:
    """One line a toolkit: the releases on which its fixes were tested, and what they are, as its page begins."""
    whole = loader.load()
    lines = ["| toolkit | tested releases | fixes | |", "|---|---|---|---|"]
    for folder, patches in pages().items():
        rows = [row for patch in patches for row in whole.rows_of(patch.id) if row.status == "cured"]
        # Some patches of a folder are put on what its toolkit stands on.
        own = [row for row in rows if whole.patches[row.patch].toolkit.lower() == folder]
        tested = sorted({version for row in own for version in row.tested})
        title, about = _opening(folder)
        span = f"{len(tested)}, {tested[0]} to {tested[-1]}" if len(tested) > 1 else str(tested[0])
        lines.append(f"| {title} | {span} | {len({row.patch for row in rows})} | {about} |")
    return "\n".join(lines)


def _opening(folder: str) -> Tuple[str, str]:
    """A link to the page of a toolkit, and the line with which it begins; its name where it has no page yet."""
    page = DOCS / f"{folder}.md"
    if not page.exists():
        return folder, ""
    title, _, about = page.read_text(encoding="utf-8").split("\n")[:3]
    return f"[{title[2:]}](docs/{folder}.md)", about


def cures(patches: List[Patch]) -> str:
    """One line a fix: which releases it is for."""
    whole = loader.load()
    lines = ["| fix | fixed in | tested on |", "|---|---|---|"]
    for patch in patches:
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
    """One section a patch, one line a row of it."""
    whole = loader.load()
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


def generated() -> Iterator[Tuple[Path, Dict[str, str]]]:
    """Files with generated parts, and these parts by their names."""
    for folder, patches in pages().items():
        if (DOCS / f"{folder}.md").exists():
            yield DOCS / f"{folder}.md", {"cures": cures(patches)}
    yield DOCS / "usage.md", {"settings": values()}
    yield DOCS / "architecture.md", {"rooms": rooms.picture()}
    yield README, {"toolkits": toolkits()}


def filled(text: str, parts: Dict[str, str]) -> str:
    """A text with its generated parts made anew."""
    for name, made in parts.items():
        begin, end = f"<!-- {name}: generated -->", f"<!-- {name}: end -->"
        before, found, rest = text.partition(begin)
        assert found and end in rest, f"no generated part {name}"
        text = f"{before}{begin}\n{made}\n{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    for path, parts in generated():
        path.write_text(filled(path.read_text(encoding="utf-8"), parts), encoding="utf-8")
    VERSIONS.write_text(versions(), encoding="utf-8")
