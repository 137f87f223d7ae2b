"""What ddpfix adds to the start of an interpreter: while it is off, and while it is on and no toolkit is imported."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Callable, List, Set

from tests.activation.support import Place, empty_folder, start
from tests.benchmarks import places
from tests.benchmarks.measure import extra, middle_half, process_ms, ratio, take_turns
from tests.benchmarks.report import Figure

# With -S the module site is not run yet, so that one .pth file can be timed by itself, as the only one.
_ONE_PTH = (
    "import sys, time, site\n"
    "begun = time.perf_counter_ns()\n"
    "site.addpackage(sys.argv[1], 'ddpfix.pth', None)\n"
    "print(time.perf_counter_ns() - begun)"
)
_MODULES = "import sys, __future__; print(*sorted(sys.modules))"
_FORBIDDEN = ("wrapt", "yaml", "packaging", "torch", "logging")


def switched_off(folder: Path, quick: bool) -> List[Figure]:
    """ddpfix.pth with DDPFIX unset, against a .pth file that says ``import os``, and against none."""
    kinds = {"bare": places.bare, "line": places.one_line, "ours": places.ours}
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
    place = places.ours(folder / "on")
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


def _start(place: Place, **more: str) -> Callable[[], float]:
    env, command = place.env(**more), [place.python, "-c", "pass"]
    return lambda: process_ms(command, env, empty_folder())


def _one_pth(place: Place) -> Callable[[], float]:
    """The microseconds that one .pth file takes in a fresh interpreter."""
    env = place.env()

    def run() -> float:
        done = start([place.python, "-S", "-c", _ONE_PTH, place.packages], env)
        assert done.returncode == 0, done.stderr
        return float(done.stdout) / 1000

    return run


def _modules(place: Place, **more: str) -> Set[str]:
    done = start([place.python, "-c", _MODULES], place.env(**more))
    assert done.returncode == 0 and not done.stderr, done.stderr
    return set(done.stdout.split())
