"""The hook on ``hydra.main``: FunASR's entries are recognised by what they use, and everybody else's are left alone.

The package here is a stand-in of three files, so that the hook is looked at by itself; that it reaches the real entries
is shown by the tests beside this one, none of which would pass without it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Tuple

import pytest

pytestmark = pytest.mark.patches("funasr.entry")

ROOT = Path(__file__).parents[2]
ENTRY = """\
import json, sys
import ddpfix.auto
import hydra
from funasr.register import tables
Trainer = download_model = None

@hydra.main(config_name=None, version_base=None)
def main_hydra(kwargs):
    print("seen", json.dumps({"same": type(kwargs).__name__, "x": kwargs.get("x"), "doc": main_hydra.__name__}))
    main(**kwargs)

def main(**kwargs):
    y = kwargs["y"] if isinstance(kwargs["y"], bool) else dict(kwargs["y"])
    print("main", json.dumps({"y": y, "inside": entry.current() is not None}))

from ddpfix import engine
from ddpfix.patches.funasr import entry
from ddpfix.patching.site import Site
site = Site("test", activation=engine.current())
original = main
HOOKS
main_hydra()
assert main is original and entry.current() is None
print("end", json.dumps(site.undo()))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "funasr").mkdir()
    (tmp_path / "funasr" / "__init__.py").write_text("")
    (tmp_path / "funasr" / "register.py").write_text("tables = object()\n")
    (tmp_path / "funasr" / "version.txt").write_text("1.4.16\n")
    return tmp_path


def run(folder: Path, hooks: str = "", entry: str = ENTRY) -> Tuple[subprocess.CompletedProcess[str], Dict[str, Any]]:
    (folder / "train.py").write_text(entry.replace("HOOKS", hooks))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "HYDRA_FULL_ERROR": "1"}
    environ["DDPFIX_OVERRIDES"] = "off"
    command = [sys.executable, "train.py", "++x=1", "+y.z=2", "hydra.run.dir=.", "hydra.output_subdir=null"]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    lines = (line.partition(" ") for line in done.stdout.splitlines())
    return done, {word: json.loads(rest) for word, _, rest in lines if word in ("seen", "main", "end")}


def test_without_hooks_the_entry_gets_what_hydra_made(folder: Path) -> None:
    done, record = run(folder)
    assert done.returncode == 0, done.stderr
    assert record["seen"] == {"same": "DictConfig", "x": 1, "doc": "main_hydra"}
    assert record["main"] == {"y": {"z": 2}, "inside": True} and record["end"] == []


def test_hooks_see_what_was_typed_and_may_change_it(folder: Path) -> None:
    hooks = """
entry.before_download(site, lambda run: run.cfg.update(x=run.typed["y.z"] + "!"))
entry.before_main(site, lambda run: run.kwargs.update(y=run.ds))
import contextlib
@contextlib.contextmanager
def around(run):
    print("seen around", file=sys.stderr)
    yield
entry.around_main(site, around)
"""
    done, record = run(folder, hooks)
    assert done.returncode == 0, done.stderr
    assert record["seen"]["x"] == "2!" and record["main"]["y"] is False and "seen around" in done.stderr


def test_a_value_error_of_a_hook_stops_the_run_and_another_one_is_logged(folder: Path) -> None:
    done, record = run(folder, "entry.before_main(site, lambda run: int('ten'))")
    assert done.returncode != 0 and "invalid literal" in done.stderr and "main" not in record
    done, record = run(folder, "entry.before_main(site, lambda run: run.nothing)")
    assert done.returncode == 0 and record["main"]["inside"]
    assert "and left it unchanged: AttributeError" in done.stderr


@pytest.mark.parametrize("missing", ["from funasr.register import tables", "Trainer = download_model = None"])
def test_another_application_of_hydra_is_left_alone(folder: Path, missing: str) -> None:
    entry = ENTRY.replace(missing, "import funasr.register")
    hooks = "entry.before_main(site, lambda run: 1 / 0)\nassert main_hydra.__wrapped__.__name__ == 'main_hydra'"
    done, record = run(folder, hooks, entry)
    assert done.returncode == 0, done.stderr
    assert record["main"]["inside"] is False and "ddpfix" not in done.stderr


def test_an_error_of_the_program_has_no_frame_of_ddpfix(folder: Path) -> None:
    done, _ = run(folder, "", ENTRY.replace("def main(**kwargs):\n", "def main(**kwargs):\n    1 / 0\n"))
    assert "ZeroDivisionError" in done.stderr and "in main_hydra" in done.stderr
    ours = [str(ROOT / "patches"), str(ROOT / "ddpfix")]
    assert sys.version_info < (3, 11) or not any(place in done.stderr for place in ours), done.stderr
