"""DDPFIX and the settings take effect: on, off, isolated, not understood; and a bad setting is one line."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

import pytest

from tests.activation.support import ROOT, Finished, Place, one_line, start
from tests.activation.ways import PROBE, Way, look

AUTO = "import ddpfix.auto\n"
TRY_TORCH = (
    "import torch, sys; ours = sys.modules.get('ddpfix'); print(bool(ours and ours.report().active)); sys.exit(3)"
)


def nothing(done: Finished[str], *ours: str) -> None:
    """No finder, and no module of ours but the named ones, which are always loaded."""
    seen = look(done)
    assert (seen["armed"], seen["active"], seen["ours"], done.stderr) == (0, False, sorted(ours), "")


CHILD = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {PROBE!r}])\n"
RUN = ("-m", "ddpfix", "run")
# The words, and DDPFIX.
ON: List[Tuple[Sequence[str], Optional[str]]] = [
    *((["-c", PROBE], value) for value in ("1", "true", "YES", " on ")),
    # The import; children that are started later find the variable.
    *((["-c", AUTO + code], value) for code in (PROBE, CHILD) for value in (None, "")),
    ([*RUN, "-c", PROBE], ""),
    # All ways at once are one activation.
    ([*RUN, "python", *RUN, "-c", AUTO + PROBE], "1"),
]


@pytest.mark.parametrize(("words", "value"), ON, ids=range(len(ON)))
def test_what_switches_on(installed: Place, words: Sequence[str], value: Optional[str]) -> None:
    seen = look(installed.run(*words, DDPFIX=value))
    assert (seen["armed"], seen["active"]) == (1, True)


def test_the_import_switches_on_where_nothing_is_installed(unpatched: Place) -> None:
    assert look(unpatched.run("-c", AUTO + PROBE, PYTHONPATH=str(ROOT)))["active"]


LOADED = ("ddpfix", "ddpfix._boot", "ddpfix._switch")
# The words, DDPFIX, and what of ours is loaded all the same.
OFF: List[Tuple[Sequence[str], Optional[str], Sequence[str]]] = [
    *((["-c", PROBE], value, ()) for value in (None, "", "0")),
    *((["-c", PROBE], value, LOADED) for value in ("false", "No", "off", " 0 ", " ")),
    # Isolated interpreters.
    *(([flag, "-c", PROBE], "1", ()) for flag in ("-I", "-E", "-S", "-ES")),
    (["-c", AUTO + PROBE], "0", ("ddpfix", "ddpfix._switch", "ddpfix.auto")),
]


@pytest.mark.parametrize(("words", "value", "ours"), OFF, ids=range(len(OFF)))
def test_where_it_is_off_nothing_is_imported(
    installed: Place, words: Sequence[str], value: Optional[str], ours: Sequence[str]
) -> None:
    nothing(installed.run(*words, DDPFIX=value), *ours)


RANK = {"LOCAL_RANK": "0", "DDPFIX_HANG": "50", "DDPFIX_LOG": "debug"}
TOLD = "ddpfix: DDPFIX_HANG (and 1 more) is set, but DDPFIX=1 is not: ddpfix is off unless the program switches it on"


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (RANK, True),
        ({**RANK, "LOCAL_RANK": "1"}, False),
        ({**RANK, "DDPFIX": "0"}, False),
        ({"LOCAL_RANK": "0"}, False),
    ],
    ids=["settings", "other rank", "off", "none"],
)
def test_a_rank_with_settings_and_no_switch_gets_a_line(
    installed: Place, tmp_path: Path, environ: Dict[str, str], told: bool
) -> None:
    (tmp_path / "torch.py").touch()
    done = installed.run("-c", "import json, torch", PYTHONPATH=str(tmp_path), **environ)  # type: ignore[arg-type]
    assert done.returncode == 0 and done.stderr.startswith(TOLD) == told and bool(done.stderr) == told, done.stderr
    assert installed.run("-c", "import json", **environ).stderr == ""  # type: ignore[arg-type]


def test_a_program_that_switches_ddpfix_on_itself_gets_no_line(installed: Place) -> None:
    done = installed.run("-c", AUTO + TRY_TORCH, LOCAL_RANK="0", DDPFIX_HANG="50")
    assert (done.returncode, done.stdout, done.stderr) == (3, "True\n", "")


@pytest.mark.parametrize("flag", ["-I", "-E"])
def test_isolated_children_of_run_stay_unpatched(way: Way, flag: str) -> None:
    rest = ["-c", PROBE] if not way.prefix else ["python", flag, "-c", PROBE]
    flags = [flag] if not way.prefix else []
    nothing(way.run(rest, flags=flags))


def test_run_in_an_isolated_interpreter_says_that_it_does_nothing(installed: Place) -> None:
    done = installed.run("-I", "-m", "ddpfix", "run", "-c", PROBE)
    assert look(done, False)["armed"] == 0
    assert len(done.stderr.splitlines()) == 1 and "-I" in done.stderr


def test_zero_wins_over_run_whatever_else_is_set(way: Way) -> None:
    if way.prefix:
        env = way.unpatched_env(DDPFIX="0", DDPFIX_LAYERDROP="nonsense")
        nothing(start(way.ours([], ["-c", PROBE]), env))


@pytest.mark.parametrize("value", ["maybe", "2", "-1", "on off"])
def test_a_value_that_is_not_understood_is_one_line(way: Way, value: str) -> None:
    unpatched = way.plain(["-c", PROBE])
    env = way.unpatched_env(DDPFIX=value)
    done = start(way.ours([], ["-c", PROBE]), env)
    assert look(done, False)["armed"] == 0 and look(done, False)["world"] == look(unpatched)["world"]
    one_line(done, "DDPFIX", value, "1", "true", "yes", "on", "0", "false", "no", "off")
    ending = start(way.ours([], ["-c", TRY_TORCH]), env)
    assert (ending.returncode, ending.stdout) == (3, "False\n")
    one_line(ending, value)


def test_a_value_that_is_not_understood_and_the_import(installed: Place, unpatched: Place) -> None:
    for place, path in ((installed, None), (unpatched, str(ROOT))):
        done = place.run("-c", AUTO + PROBE, DDPFIX="maybe", PYTHONPATH=path)
        assert look(done, False)["armed"] == 0
        assert {line.partition(":")[0] for line in done.stderr.splitlines()} == {"ddpfix"}


BAD: List[Dict[str, str]] = [
    {"DDPFIX_LAYERDROP": "wrong"},
    {"DDPFIX_FOO": "1"},
    {"DDPFIX_TRANSFORMERS_LAYERDROP": "perhaps"},
    {"DDPFIX_SEED": "-3"},
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: next(iter(bad)))
def test_a_bad_setting_is_one_line_and_the_program_runs_as_without_us(installed: Place, bad: Dict[str, str]) -> None:
    done = start([installed.python, "-c", TRY_TORCH], installed.env(DDPFIX="1", **bad))
    assert (done.returncode, done.stdout) == (3, "False\n")
    one_line(done, *bad, "ddpfix is OFF in this process")


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: next(iter(bad)))
def test_run_refuses_a_bad_setting_before_it_starts(way: Way, tmp_path: Path, bad: Dict[str, str]) -> None:
    if way.prefix:
        done = way.run(["-c", "open('started', 'w')"], tmp_path, **bad)
        assert done.returncode == 2 and not (tmp_path / "started").exists()
        one_line(done, *bad, "plan --help" if "DDPFIX_FOO" in bad else "expected")


def test_a_bad_project_file(installed: Place, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.ddpfix]\nlayerdrop = 'wrong'\n", encoding="utf-8")
    done = installed.run("-c", TRY_TORCH, cwd=tmp_path, DDPFIX="1")
    assert (done.returncode, done.stdout) == (3, "False\n")
    one_line(done, "pyproject.toml", "sync, off, stock")
    done = installed.run("-m", "ddpfix", "run", "-c", TRY_TORCH, cwd=tmp_path)
    assert done.returncode == 2
    one_line(done, "pyproject.toml")


SETTINGS = "import os, torch, ddpfix; print(os.environ.get('DDPFIX_LAYERDROP'), ddpfix.report().settings['layerdrop'])"


@pytest.mark.parametrize(
    "option", [["--layerdrop", "off"], ["--layerdrop=off"], ["--layerdrop=off", "--"]], ids=" ".join
)
def test_settings_of_the_command_line_reach_the_program(way: Way, option: List[str]) -> None:
    if way.prefix:
        done = way.run([*option, "-c", SETTINGS, "--layerdrop", "stock"], DDPFIX_LAYERDROP="stock")
        assert (done.returncode, done.stdout, done.stderr) == (0, "off off\n", "")


WRONG = [["--layerdorp", "off", "x.py"], ["--layerdrop"], ["-O", "x.py"], [], ["-m"], ["-c"]]


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_what_run_cannot_understand_is_refused(installed: Place, words: List[str]) -> None:
    done = installed.run("-m", "ddpfix", "run", *words)
    assert done.returncode == 2 and done.stdout == "" and "ddpfix" in done.stderr and "Traceback" not in done.stderr
