"""Half uninstalled, broken, or with a hostile matrix: one clear line, and the program runs as if we were not there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Callable, Dict, Tuple

import pytest

from tests.activation import support
from tests.activation.support import Place, one_line

PROGRAM = "import torch, sys; print(torch.__version__); sys.exit({})"
Break = Callable[[Path], object]
MATRIX = "compat_matrix.json"


def write(name: str, text: str) -> Break:
    return lambda package: (package / name).write_text(text, encoding="utf-8")


def remove(name: str) -> Break:
    return lambda package: (package / name).rename(package.parent / "removed")


def as_folder(package: Path) -> None:
    (package / MATRIX).unlink()
    (package / MATRIX).mkdir()


def replace(text: str, instead: str) -> Break:
    def act(package: Path) -> None:
        path = package / MATRIX
        before = path.read_text(encoding="utf-8")
        assert text in before
        path.write_text(before.replace(text, instead, 1), encoding="utf-8")

    return act


# What breaks the switch itself is noticed in every process, the rest when the first toolkit is imported.
AT_START: Dict[str, Break] = {
    "the package is gone": shutil.rmtree,
    "_boot is gone": remove("_boot.py"),
    "_boot is broken": write("_boot.py", "def"),
    "_boot exits": write("_boot.py", "raise SystemExit(5)"),
    "_boot has another shape": write("_boot.py", ""),
    "the package is broken": write("__init__.py", "import nowhere"),
    "the import hook is broken": write("import_hook.py", "1 / 0"),
}
AT_TORCH: Dict[str, Break] = {
    "engine is gone": remove("engine.py"),
    "engine is broken": write("engine.py", "def"),
    "engine exits": write("engine.py", "raise SystemExit(5)"),
    "settings are broken": write("settings/reading.py", "raise RuntimeError('two\\nlines')"),
    "the patches are gone": remove("patches"),
    "no matrix": remove(MATRIX),
    "the matrix is a folder": as_folder,
    "empty": write(MATRIX, ""),
    "binary": lambda package: (package / MATRIX).write_bytes(b"\xff\xfe\0\0" * 100),
    "no digest": write(MATRIX, "torch\n{}"),
    "deep": write(MATRIX, "[" * 600),
    "one word is another": replace('"cured"', '"cursed"'),
    "code that is not ours": replace('"code":"torch.', '"code":"os.'),
}


# The line names the remedy, and the file of the matrix.
SAID = {
    "the package is gone": ("No module named 'ddpfix'", "unset DDPFIX"),
    "no digest": ("compat_matrix.json:1: is damaged; reinstall ddpfix",),
}


@pytest.fixture
def place(tmp_path: Path, wheel: Path, requirements: Path, torch_folder: Path) -> Place:
    place = support.new_place(tmp_path / "place")
    support.unpack(wheel, place)
    place.link(requirements, torch_folder)
    return place


@pytest.mark.parametrize("fault", [*AT_START, *AT_TORCH])
def test_the_program_runs_as_without_us(place: Place, tmp_path: Path, fault: str) -> None:
    {**AT_START, **AT_TORCH}[fault](place.packages / "ddpfix")
    done = place.run("-c", PROGRAM.format(0), cwd=tmp_path, DDPFIX="1")
    assert (done.returncode, done.stdout) == (0, "0.1.0\n"), done.stderr
    line = one_line(done)
    assert all(words in line for words in SAID.get(fault, ())), line
    assert place.run("-c", PROGRAM.format(3), cwd=tmp_path, DDPFIX="1").returncode == 3
    other = place.run("-c", "import json", DDPFIX="1")
    assert (other.returncode, bool(other.stderr)) == (0, fault in AT_START)
    off = place.run("-c", PROGRAM.format(0), DDPFIX="0")
    assert (off.returncode, off.stderr) == (0, "")


def test_the_same_without_a_fault_is_silent(place: Place) -> None:
    """The tests above would prove nothing if the place were broken by itself."""
    done = place.run("-c", "import torch, ddpfix; print(ddpfix.report().active)", DDPFIX="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_a_requirement_is_missing(place: Place, torch_folder: Path) -> None:
    place.link(torch_folder)
    done = place.run("-c", PROGRAM.format(0), DDPFIX="1")
    assert (done.returncode, done.stdout) == (0, "0.1.0\n")
    assert "No module named 'packaging'" in one_line(done)


@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full", "2>&1 >/dev/full"])
def test_there_is_nobody_to_tell(place: Place, where: str) -> None:
    for fault in (AT_TORCH["engine is broken"], AT_START["the package is gone"]):
        fault(place.packages / "ddpfix")
        line = f"{place.python} -c '{PROGRAM.format(3).replace('print', 'str')}' {where}"
        assert support.start(["sh", "-c", line], place.env(DDPFIX="1")).returncode == 3


BROKEN_PATCH: Dict[str, Tuple[str, str]] = {
    "exception": ("torch/agreement/stage.py", "\n1 / 0\n"),
    "syntax": ("torch/unused/flag.py", "\ndef more(site, module, owner) = 1\n"),
}


@pytest.mark.parametrize("kind", BROKEN_PATCH)
def test_a_patch_that_raises_leaves_the_import_fine(
    place: Place, tmp_path: Path, requirements: Path, kind: str
) -> None:
    """This torch says that it is 2.13.0 and lacks what the patches look for; one patch cannot even be imported."""
    name, text = BROKEN_PATCH[kind]
    file = place.packages / "ddpfix" / "patches" / name
    file.write_text(file.read_text(encoding="utf-8") + text, encoding="utf-8")
    place.link(requirements, support.stub_torch(tmp_path / "newer", "2.13.0"))
    code = "import torch.nn.parallel.distributed as d, ddpfix; print(d.Other, ddpfix.report().count('failed') > 2)"
    done = place.run("-c", code, DDPFIX="1")
    assert (done.returncode, done.stdout) == (0, "<class 'torch.nn.parallel.distributed.Other'> True\n"), done.stderr
    assert all(line.startswith("ddpfix: ") and "could not be applied" in line for line in done.stderr.splitlines())
    assert place.run("-c", "import torch.tool", DDPFIX="1").returncode == 0
