"""A program cannot tell that it runs under ddpfix: paths, arguments, flags, signals, exit codes are the same."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Dict, List, Sequence

import pytest

from tests.activation.support import ROOT, Finished, Place, start
from tests.activation.ways import PROBE, WAYS, Way, lay_out, look, make
from tests.support import ranks

ARGUMENTS = ["--lr", "1e-4", "-m", "x", "--layerdrop", "off", "--", "-c", "", "two words", "--help"]
STARTS: Dict[str, List[str]] = {
    "script": ["probe.py"],
    "path": ["{here}/probe.py"],
    "spaces": ["./my probe.py"],
    "executable file in the folder": ["probe"],
    "module": ["-m", "package.probe"],
    "attached module": ["-mpackage.probe"],
    "package": ["-m", "package"],
    "folder": ["package"],
    "zip": ["probe.zip"],
    "code": ["-c", PROBE],
    "stdin": ["-"],
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay_out(tmp_path_factory.mktemp("programs"))


def both(way: Way, here: Path, flags: Sequence[str], rest: Sequence[object], stdin: str = "") -> List[Finished[str]]:
    return [way.plain(rest, here, flags, stdin), way.run(rest, here, flags, stdin)]


def compare(way: Way, here: Path, flags: Sequence[str], rest: Sequence[object], stdin: str = "") -> None:
    unpatched, ours = map(look, both(way, here, flags, rest, stdin))
    assert ours["world"] == unpatched["world"]
    assert (unpatched["armed"], unpatched["ours"]) == (0, [])
    assert (ours["armed"], ours["active"]) == (1, True)


@pytest.mark.parametrize("kind", STARTS)
def test_every_way_to_name_a_program(way: Way, here: Path, kind: str) -> None:
    rest = [word.format(here=here) if kind == "path" else word for word in STARTS[kind]]
    compare(way, here, [], [*rest, *ARGUMENTS], PROBE)


FLAGS = [
    ["-O"],
    ["-OO", "-B"],
    ["-W", "error::UserWarning", "-Wdefault::ImportWarning"],
    ["-X", "dev", "-Xutf8"],
    ["-u"],
    ["-uBW", "ignore", "-bb", "-s"],
    ["-X", "faulthandler", "-q", "--check-hash-based-pycs", "always"],
    ["-W", "error"],
]


@pytest.mark.parametrize("name", [name for name in WAYS if name != "console"])
@pytest.mark.parametrize("flags", FLAGS, ids=" ".join)
def test_flags_of_the_interpreter(request: pytest.FixtureRequest, here: Path, name: str, flags: List[str]) -> None:
    compare(make(name, request), here, flags, ["probe.py", "a"])


def test_flags_in_one_word_with_our_m(installed: Place, here: Path) -> None:
    done = installed.run("-OBum", "ddpfix", "run", "probe.py", cwd=here)
    world = look(done)["world"]
    assert (world["flags"]["optimize"], world["flags"]["dont_write_bytecode"], world["through"]) == (1, 1, True)


def test_variables_for_the_interpreter(way: Way, here: Path) -> None:
    more = {"PYTHONOPTIMIZE": "1", "PYTHONWARNINGS": "ignore::UserWarning", "PYTHONHASHSEED": "7", "LC_ALL": "C"}
    assert look(way.run(["probe.py"], here, **more))["world"] == look(way.plain(["probe.py"], here, **more))["world"]


ENDS = {
    "well": "print('done')",
    "number": "import sys; sys.exit(3)",
    "message": "import sys; sys.exit('the message')",
    "exception": "raise ValueError('why')",
    "hard": "import os; os._exit(7)",
    "abort": "import os; os.abort()",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "interrupted": "import os, signal; os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(9)",
    "pipe": "import os, signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGPIPE)",
    "syntax": "def",
    "late": "import atexit, os; atexit.register(os._exit, 5)",
}


# Programs that are not there.
MISSING = {" ".join(words): words for words in (["nowhere.py"], ["-m", "nowhere"], ["nowhere"], ["./nowhere"])}


@pytest.mark.parametrize("end", [*ENDS, *MISSING])
def test_exit_codes_and_messages(way: Way, here: Path, end: str) -> None:
    unpatched, ours = both(way, here, [], MISSING[end] if end in MISSING else ["-c", ENDS[end]])
    assert (ours.returncode, ours.stdout, ours.stderr) == (unpatched.returncode, unpatched.stdout, unpatched.stderr)
    assert bool(ours.returncode) == (end != "well")


WAITS = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
TIDY = "import signal, sys; signal.signal(signal.{}, lambda *_: sys.exit(9)); " + WAITS


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("code", [WAITS, TIDY], ids=["default", "handler"])
def test_signals_arrive(way: Way, name: str, code: str) -> None:
    rest = ["-c", code.format(name)]
    unpatched = signalled([way.place.python, *rest], way.unpatched_env(), getattr(signal, name))
    assert signalled(way.ours([], rest), way.ours_env(), getattr(signal, name)) == unpatched
    assert unpatched[0] == (9 if code is TIDY else -getattr(signal, name))


def signalled(words: Sequence[object], env: Dict[str, str], number: int) -> List[object]:
    command = [str(word) for word in words]
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=ranks.foreground
    )
    assert process.stdout is not None
    # It is the process that was started and no child of it, so whoever started it can signal and await it.
    assert int(process.stdout.readline()) == process.pid
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    # Where exactly the signal arrived is chance, and in the lines before the last.
    return [process.returncode, errors.splitlines()[-1:]]


SURVIVES = "import os, signal; os.kill(os.getpid(), signal.{}); print('survived')"


@pytest.mark.parametrize("name", ranks.KEYBOARD)
def test_a_signal_that_a_background_job_ignores_stays_ignored(way: Way, name: str) -> None:
    code = SURVIVES.format(name)
    done = start(way.ours([], ["-c", code]), way.ours_env(), before=lambda: ranks.foreground(signal.SIG_IGN))
    assert (done.returncode, done.stdout, done.stderr) == (0, "survived\n", "")


def test_a_signal_that_python_ignores_is_not_ignored_in_a_program(way: Way) -> None:
    if way.prefix:
        done = way.run(["sh", "-c", "kill -PIPE $$; echo survived"])
        assert (done.returncode, done.stdout) == (-signal.SIGPIPE, "")


def test_programs(way: Way, here: Path) -> None:
    if not way.prefix:
        return
    shell = here / "start.sh"
    shell.write_text('#!/bin/sh\nexec python probe.py "$@"\n', encoding="utf-8")
    shell.chmod(0o755)
    for rest in (
        ["sh", "-c", "python probe.py a"],
        ["./start.sh", "a"],
        [str(shell), "a"],
        ["python", "probe.py", "a"],
    ):
        seen = look(way.run(rest, here))
        assert (seen["armed"], seen["active"], seen["world"]["argv"]) == (1, True, ["probe.py", "a"])
    refused = here / "no_program"
    refused.write_bytes(b"\0\1\2")
    refused.chmod(0o755)
    done = way.run(["./no_program"], here)
    assert done.returncode == 126 and done.stderr.startswith("ddpfix: ./no_program: ")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&-", "2>/dev/full"])
def test_closed_and_full_streams(way: Way, here: Path, closed: str) -> None:
    code = "import sys; sys.exit(4)"
    line = " ".join(f"'{word}'" for word in way.ours([], ["-c", code])) + " " + closed
    assert start(["sh", "-c", line], way.ours_env(), here).returncode == 4


CHAIN = "import os\nwith open(os.environ['WITNESS'], 'a') as file:\n    file.write('{}\\n')\n"


def test_the_users_own_sitecustomize_runs(way: Way, here: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(CHAIN.format("mine"), encoding="utf-8")
    witness = tmp_path / "witness"
    path = os.pathsep.join([str(tmp_path), way.env.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    more = {"WITNESS": str(witness), "PYTHONPATH": path}
    code = PROBE.replace("world = {", 'import sitecustomize\nworld = {"site": sitecustomize.__file__, ')
    unpatched = look(way.plain(["-c", code], here, **more))
    assert witness.read_text(encoding="utf-8") == "mine\n"
    witness.unlink()
    ours = look(way.run(["-c", code], here, **more))
    # The run command itself is an interpreter too, and starts with the same file.
    assert witness.read_text(encoding="utf-8") == "mine\n" * (2 if way.prefix else 1)
    assert ours["world"] == unpatched["world"] and ours["active"]


def test_a_broken_sitecustomize_of_the_user_is_reported_as_without_us(way: Way, here: Path, tmp_path: Path) -> None:
    breaks = "import os\nif 'BREAK' in os.environ: raise ValueError('mine')\n"
    (tmp_path / "sitecustomize.py").write_text(breaks, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), way.env.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    code = "import os; os.environ['BREAK'] = '1'; os.execv({!r}, [{!r}, '-c', 'pass'])".format(
        *[str(way.place.python)] * 2
    )
    unpatched, ours = (run(["-c", code], here, PYTHONPATH=path) for run in (way.plain, way.run))
    assert "ValueError: mine" in unpatched.stderr
    assert (ours.returncode, ours.stderr.splitlines()[-1]) == (unpatched.returncode, unpatched.stderr.splitlines()[-1])


def test_from_the_folder_of_the_checkout(unpatched: Place, here: Path) -> None:
    seen = look(unpatched.run("-m", "ddpfix", "run", here / "probe.py", "a", cwd=ROOT))
    plain = look(unpatched.run(here / "probe.py", "a", cwd=ROOT))
    assert seen["world"] == plain["world"] and seen["active"]


def test_patches_is_not_a_module_of_its_own(way: Way, here: Path) -> None:
    code = "import torch, sys\ntry:\n    import patches\nexcept ImportError:\n    sys.exit(0)\nsys.exit(1)"
    assert way.run(["-c", code], here).returncode == 0
