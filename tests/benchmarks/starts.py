"""What ddpfix adds to the start of an interpreter: off, on without a toolkit, and on with imports of toolkits.

Measured in fresh virtual environments, one of them with ddpfix laid out as its wheel lays it out.
"""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Callable, Dict, List, Set

from tests.activation.support import ROOT, Place, empty_folder, new_place, start, succeed
from tests.benchmarks.measure import Figure, extra, middle_half, process_ms, ratio, take_turns

# With -S the module site is not run yet, so that one .pth file can be timed by itself, as the only one.
_ONE_PTH = (
    "import sys, time, site\n"
    "begun = time.perf_counter_ns()\n"
    "site.addpackage(sys.argv[1], 'ddpfix.pth', None)\n"
    "print(time.perf_counter_ns() - begun)"
)
_MODULES = "import sys, __future__; print(*sorted(sys.modules))"
_FORBIDDEN = ("yaml", "packaging", "torch", "logging")
_BORROWED = ("torch", "transformers", "packaging", "rich")
_MODEL = "transformers.models.wav2vec2.modeling_wav2vec2"


def switched_off(folder: Path, quick: bool) -> List[Figure]:
    """ddpfix.pth with DDPFIX unset, against a .pth file that says ``import os``, and against none."""
    kinds = {"bare": new_place, "line": _one_line, "ours": _ours}
    made = {name: make(folder / name) for name, make in kinds.items()}
    one = take_turns({name: _one_pth(made[name]) for name in ("line", "ours")}, 3 if quick else 80)
    whole = take_turns({name: _start(place) for name, place in made.items()}, 3 if quick else 250)
    ours, line = extra(whole, "ours", "bare"), extra(whole, "line", "bare")
    share = 100 * median(ours) / median(whole["bare"])
    return [
        Figure("ddpfix.pth / one-line .pth, each by itself", ratio(one, "ours", "line"), "x", 2),
        Figure("ddpfix.pth by itself", median(one["ours"]), "us", note=middle_half(one["ours"], 0)),
        Figure("one-line .pth by itself", median(one["line"]), "us", note=middle_half(one["line"], 0)),
        Figure("whole start, added by ddpfix.pth", share, "%", 3, f"{1000 * median(ours):.0f} us of CPU"),
        Figure("whole start, added by the one line", 100 * median(line) / median(whole["bare"]), "%"),
        Figure("whole start without any", median(whole["bare"]), "ms", note=middle_half(whole["bare"])),
    ]


def switched_on(folder: Path, quick: bool) -> List[Figure]:
    """DDPFIX=1 against DDPFIX unset, in an interpreter that imports no toolkit."""
    place = _ours(folder / "on")
    turns = take_turns({"off": _start(place), "on": _start(place, DDPFIX="1")}, 3 if quick else 120)
    more = extra(turns, "on", "off")
    added = _modules(place, DDPFIX="1") - _modules(place)
    heavy = [name for name in added if name.partition(".")[0] in _FORBIDDEN]
    return [
        Figure("added CPU", median(more), "ms", 2, middle_half(more, 2)),
        Figure("added to the whole start", 100 * median(more) / median(turns["off"]), "%", 12),
        Figure("modules imported", len(added), "", note=", ".join(sorted(added))),
        Figure(f"of {', '.join(_FORBIDDEN)}", len(heavy), "", 0, ", ".join(sorted(heavy))),
    ]


def _start(place: Place, code: str = "pass", **more: str) -> Callable[[], float]:
    env, command = place.env(**more), [place.python, "-c", code]
    return lambda: process_ms(command, env, empty_folder())


def _one_pth(place: Place) -> Callable[[], float]:
    """The microseconds that one .pth file takes in a fresh interpreter."""

    def run() -> float:
        done = place.run("-S", "-c", _ONE_PTH, place.packages)
        assert done.returncode == 0, done.stderr
        return float(done.stdout) / 1000

    return run


def _modules(place: Place, **more: str) -> Set[str]:
    done = start([place.python, "-c", _MODULES], place.env(**more))
    assert done.returncode == 0 and not done.stderr, done.stderr
    return set(done.stdout.split())


def imports(folder: Path, quick: bool) -> List[Figure]:
    """DDPFIX=1 against DDPFIX unset, in processes that import toolkits."""
    place = _with_toolkits(folder / "toolkits")
    code = f"import {'torch' if quick else _MODEL}"
    turns = take_turns(
        {"off": _start(place, code), "on": _start(place, code, DDPFIX="1", DDPFIX_LOG="off")}, 1 if quick else 8
    )
    # One process differs from the next by more than we add: in the one that took least, no other job did.
    off, on = min(turns["off"]), min(turns["on"])
    return [
        Figure("added CPU, least whole process", on - off, "ms", note="rough: processes differ by 100 ms"),
        Figure("the same, of the whole process", 100 * (on - off) / off, "%", note=f"{off:.0f} ms: {code}"),
    ]


def _one_line(folder: Path) -> Place:
    """With the least that a .pth file can do, which is what ours is compared with."""
    place = new_place(folder)
    (place.packages / "ddpfix.pth").write_text("import os\n", encoding="utf-8")
    return place


def _ours(folder: Path) -> Place:
    """No wheel is built, since that needs the build backend; nothing else may lie here, since its cost would count."""
    place = new_place(folder)
    package = place.packages / "ddpfix"
    left_out = shutil.ignore_patterns("__pycache__", "patches.py", "*.pth", "compiling")
    shutil.copytree(ROOT / "ddpfix", package, ignore=left_out)
    shutil.copytree(ROOT / "patches", package / "patches", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "ddpfix" / "ddpfix.pth", place.packages)
    # Installers compile what they install, and the first start would do it otherwise.
    succeed([place.python, "-m", "compileall", "-q", package])
    return place


def _with_toolkits(folder: Path) -> Place:
    """Ours, with the toolkits of the running interpreter."""
    place = _ours(folder)
    homes: Dict[Path, None] = {}
    for name in _BORROWED:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            homes[Path(spec.origin).parent.parent] = None
    place.link(*homes)
    return place
