"""The parts of README and docs that are generated from the matrix, the settings and the code.

``python -m tests.support.readme`` runs cog over them, which calls the functions that the pages name.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Dict, Iterable, List, Sequence, Tuple

from cogapp import Cog

from ddpfix.matrix import loader
from ddpfix.matrix.model import Patch
from ddpfix.settings import reading
from ddpfix.settings.gone import GONE, RENAMED, RENAMED_UNTIL
from ddpfix.trace import schema
from tests.releases import backtest as releases
from tests.upstream import toolkit
from tests.upstream.outcomes import STOCK

README = Path(__file__).resolve().parent.parent.parent / "README.md"
CONTRIBUTING = README.parent / "CONTRIBUTING.md"
DOCS = README.parent / "docs"
# What a generated part begins with, and what its code may use.
MARK = "[[[cog"
PROLOGUE = "from tests.support import readme, rooms"


def table(heads: str, rows: Iterable[str]) -> str:
    """A table in Markdown, with a line for each row."""
    return "\n".join([f"| {heads} |", f"|{'---|' * len(heads.split('|'))}", *rows])


def pages() -> Dict[str, List[Patch]]:
    """The patches by the name of their page in docs/: the folder that holds their code.

    Of code in the folder common, and of a patch without a fix, the id is used.
    """
    found: Dict[str, List[Patch]] = {}
    for patch in loader.load().patches.values():
        home = patch.id if patch.code.startswith("common.") else patch.code or patch.id
        found.setdefault(home.partition(".")[0], []).append(patch)
    return found


def toolkits() -> str:
    """Each toolkit with the first and the last release on which its fixes were tested."""
    whole = loader.load()
    found: List[str] = []
    for folder, patches in pages().items():
        rows = [row for patch in patches for row in whole.rows_of(patch.id) if row.status == "cured"]
        # Some patches of a folder change a package that its toolkit depends on.
        own = [row for row in rows if whole.patches[row.patch].toolkit.lower() == folder]
        tested = sorted({version for row in own for version in row.tested})
        span = f"{tested[0]} to {tested[-1]}" if len(tested) > 1 else str(tested[0])
        found.append(f"{_title(folder)} {span}")
    return ", ".join(found)


def _title(folder: str) -> str:
    """A link to the page of a toolkit; its name where it has no page yet."""
    page = DOCS / f"{folder}.md"
    if not page.exists():
        return folder
    title = page.read_text(encoding="utf-8").split("\n")[0]
    return f"[{title[2:]}](docs/{folder}.md)"


def toolkit_pages() -> str:
    """The pages of the toolkits, for the index of the docs."""
    found = [_title(folder).replace("](docs/", "](") for folder in pages()]
    return ", ".join(title for title in found if title.startswith("["))


def fixes(folder: str) -> str:
    """One line a fix of a folder of patches: which releases it is for."""
    whole = loader.load()
    lines = []
    for patch in pages()[folder]:
        rows = [row for row in whole.rows_of(patch.id) if row.status == "cured"]
        if not rows:
            # Only the plan shows it; its reasons are in docs/versions.md.
            continue
        tested = sorted({version for row in rows for version in row.tested})
        shown = str(tested[0]) if len(tested) == 1 else f"{len(tested)} releases, {tested[0]} to {tested[-1]}"
        ranges = ", ".join(f"`{_readable(str(row.versions))}`" for row in rows)
        lines.append(f"| `{patch.id}`{'' if patch.default else ' (opt-in)'} | {ranges} | {shown} |")
    return table("fix | fixed in | tested on", lines)


def _readable(specifier: str) -> str:
    # packaging writes the clauses in an order of its own.
    return ",".join(sorted(specifier.split(","), reverse=True))


def versions() -> str:
    """One section a patch, one line a row of it."""
    whole = loader.load()
    parts = []
    for patch in whole.patches.values():
        parts.append(f"## {patch.id}\n\n{patch.problem}")
        rows = [(row, ", ".join(map(str, row.tested)) or "-") for row in whole.rows_of(patch.id)]
        lines = [f"| `{_readable(str(row.versions))}` | {row.status} | {tested} | {row.why} |" for row, tested in rows]
        parts.append(table("versions | | tested on | why", lines))
    return "\n\n".join(parts)


def backtest() -> str:
    """What the rule for untested releases would have done, one line a toolkit, and each fix that it would have left."""
    found = releases.kept()
    words = ["applied, right", "applied, wrong", "left out, would have held", "left out, rightly"]
    lines = []
    for name, kept in [*found.items(), ("all", releases.Kept([], releases.summed(found.values()), []))]:
        right, wrong, held, left = (kept.counts[outcome] for outcome in releases.OUTCOMES)
        if right + wrong + held + left:
            lines.append(f"| {name} | {right} | {wrong} | {held} | {left} | {right / max(right + held, 1):.0%} |")
    return table(f"toolkit | {' | '.join(words)} | applied", lines)


def values() -> str:
    """One line a setting."""
    rows = (f"| `{s.variable}` | {s.default} | {s.accepted} | {s.meaning} |" for s in reading.SETTINGS)
    return table("variable | default | values | meaning", rows)


def gone() -> str:
    """One line a removed or renamed name."""
    lines = [f"| `{key}` (works until {RENAMED_UNTIL}) | use `{now}` |" for key, now in RENAMED.items()]
    return table("removed | what to do instead", [*lines, *(f"| `{key}` | {why} |" for key, why in GONE.items())])


def faults() -> str:
    """One line a kind of fault, from the committed results of ``python -m tests.faults``."""
    # Not at the head of this file: torch is imported with it.
    from tests.faults import results

    return results.table(results.read())


def transitions() -> str:
    """The transitions of a reduction, a line for all states that an event takes to the same one."""
    # Not at the head of this file: torch is imported with it.
    from ddpfix.patches.torch.unused.states import TRANSITIONS

    states: Dict[Tuple[str, str, str], List[str]] = {}
    for (state, event), (action, after) in TRANSITIONS.items():
        states.setdefault((event, action, after), []).append(state.upper())
    lines = []
    for (event, action, after), before in states.items():
        then = after.upper() if " " not in after else after
        lines.append(f"| {event} | {', '.join(before)} | {f'`{action}`' if action else ''} | {then} |")
    return table("event | in state | action | then", lines)


def columns() -> str:
    """One line a column of a trace."""
    kinds = {"int": "integer", "float": "number", "ints": "list of integers"}
    rows = (f"| `{each.name}` | {kinds[each.kind]} | {each.unit} | {each.meaning} |" for each in schema.COLUMNS)
    return table("column | type | unit | what it is", rows)


def upstream() -> str:
    """One line a suite of a toolkit: what its tests ended with, stock and under ddpfix."""
    heads = "toolkit | tests of | torch | files | passed, failed, skipped | under ddpfix | worse | other | seconds"
    lines = []
    for found in toolkit.results():
        # In the file, which is sorted, stock is not the first one.
        modes = sorted(found["seconds"], key=lambda mode: mode != STOCK)
        counts = [", ".join(map(str, toolkit.totals(found, mode))) for mode in modes]
        files = f"{len(found['files'])} of {len(found['files']) + len(found['not_run'])}"
        seconds = ", ".join(str(found["seconds"][mode]) for mode in modes)
        cells = [f"{found['toolkit']} {found['version']}", found["checkout"], found["torch"], files, *counts]
        lines.append(f"| {' | '.join(cells)} | {len(found['worse'])} | {len(found['other'])} | {seconds} |")
    return table(heads, lines)


def cog(*options: str, pages: Sequence[Path] = ()) -> int:
    """Have cog make the generated parts of pages; with ``--check`` its exit code is not 0 for old ones."""
    words = ["cog", "--verbosity=0", "-n", "utf-8", "-p", PROLOGUE, *options]
    code: int = Cog().main([*words, *map(str, pages or generated())])
    return code


def written() -> List[Path]:
    """README, CONTRIBUTING, CHANGELOG and docs: the users' pages, and the maintainers' in docs/dev."""
    pages = [README, CONTRIBUTING, README.with_name("CHANGELOG.md"), *sorted(DOCS.rglob("*.md"))]
    # A copy in which docs/dev/adding-a-toolkit.md is followed has some of the files.
    return [page for page in pages if page.exists()]


def generated() -> List[Path]:
    """The pages that have parts which cog makes."""
    return [page for page in written() if MARK in page.read_text(encoding="utf-8")]


if __name__ == "__main__":
    sys.exit(cog("-r"))
