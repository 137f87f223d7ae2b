"""The compiled matrix says what the YAML says, and one that does not fit is refused with what to do."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, List

import pytest

from ddpfix import engine
from ddpfix.matrix import compiled, loader
from ddpfix.matrix.compiling import write
from ddpfix.matrix.compiling.reader import Reader
from ddpfix.matrix.model import Matrix
from tests.support.compiled import ROOT, YAML

FILE = ROOT / "ddpfix" / compiled.NAME


def sealed(content: bytes) -> bytes:
    """These contents, as if they had been compiled."""
    content = b"torch\n" + content
    return compiled.digest(content).encode() + b"\n" + content


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[]", b"3", b"null", b'{"digest": 1}', b"[" * 100_000])
def test_content_of_another_kind_is_refused(content: bytes) -> None:
    assert compiled.of(sealed(content)) is None and compiled.of(content) is None


@pytest.mark.parametrize("name", ["version_files", "toolkits", "patches", "order", "gate", "marks"])
def test_a_part_that_is_missing_or_of_another_kind_is_refused(name: str) -> None:
    whole = json.loads(FILE.read_bytes().split(b"\n")[2])
    for other in ({name: 3}, {name: [3]}, {name: {"x": 3}}):
        found = compiled.of(sealed(json.dumps({**whole, **other}).encode()))
        assert found is None or isinstance(found[0], Matrix)
    del whole[name]
    assert compiled.of(sealed(json.dumps(whole).encode())) is None
    whole = json.loads(FILE.read_bytes().split(b"\n")[2])
    assert compiled.of(sealed(json.dumps(whole).encode())) is not None
    whole["patches"][0]["colour"] = "red"
    assert compiled.of(sealed(json.dumps(whole).encode())) is None
    # Damaged, and still JSON of the right shape: its rows are read later.
    assert compiled.of(FILE.read_bytes().replace(b'"status":"cured"', b'"status":"cursed"', 1)) is None


def test_rows_are_made_when_they_are_first_read() -> None:
    rows: Any = loader.load().rows
    assert not rows._made
    assert (
        rows.of("torch.finalize") and list(rows._made) == ["torch.finalize"] and len(rows._made["torch.finalize"]) == 1
    )
    assert rows.of("torch.flag")[0] is rows.of("torch.flag")[0] and rows.of("no.such") == []


@pytest.mark.parametrize("code", ["os:system", "..os:system", "common.lines:x", "a/../b:c"])
def test_a_code_is_looked_for_in_the_package_alone(code: str) -> None:
    before = set(sys.modules)
    with pytest.raises((ImportError, AttributeError, ValueError, TypeError)):
        engine._code(code)
    assert not [name for name in set(sys.modules) - before if not name.startswith("ddpfix.")]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The parts of a checkout that say what to do."""
    shutil.copytree(ROOT / "ddpfix", tmp_path / "ddpfix", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "patches").symlink_to(ROOT / "patches")
    (tmp_path / "tests" / "support").mkdir(parents=True)
    for name in ("__init__.py", "support/__init__.py", "support/compiled.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests" / name)
    shutil.copy(YAML, tmp_path)
    return tmp_path


def run(checkout: Path, *words: str) -> List[str]:
    """The lines of a command in it, which ends as those of ddpfix do."""
    done = subprocess.run([sys.executable, *words], cwd=str(checkout), capture_output=True, text=True)
    assert (done.returncode != 0) == bool(done.stderr)
    return (done.stderr or done.stdout).splitlines()


def test_an_edited_yaml_is_refused_until_it_is_compiled(checkout: Path) -> None:
    plan = run(checkout, "-m", "ddpfix", "plan")
    yaml = checkout / "compat_matrix.yaml"
    yaml.write_text(yaml.read_text(encoding="utf-8") + "# a note\n", encoding="utf-8")
    (line,) = run(checkout, "-m", "ddpfix", "plan")
    assert line == f"ddpfix: {yaml}:1: was edited after it was compiled; run {loader.COMPILE}"
    assert run(checkout, *loader.COMPILE.split()[1:]) == []
    assert run(checkout, "-m", "ddpfix", "plan") == plan
    assert sorted(path.name for path in (checkout / "ddpfix").glob("compat*")) == [compiled.NAME]
    # An error has file and line, and what was compiled stays.
    before = (checkout / "ddpfix" / compiled.NAME).read_bytes()
    yaml.write_text(yaml.read_text(encoding="utf-8").replace("schema: 2", "schema: 1"), encoding="utf-8")
    (line,) = run(checkout, *loader.COMPILE.split()[1:])
    number = yaml.read_text(encoding="utf-8").splitlines().index("schema: 1") + 1
    assert line == f"{yaml}:{number}: schema '1' is not known; expected 2"
    assert (checkout / "ddpfix" / compiled.NAME).read_bytes() == before


@pytest.mark.parametrize("content", [None, "", "x\ny\nz"])
def test_none_is_refused_in_one_line(checkout: Path, content: Any) -> None:
    path = checkout / "ddpfix" / compiled.NAME
    path.unlink() if content is None else path.write_text(content, encoding="utf-8")
    (line,) = run(checkout, "-m", "ddpfix", "plan")
    assert line.startswith(f"ddpfix: {path}:1: ") and line.endswith(f"; run {loader.COMPILE}")
    assert run(checkout, *loader.COMPILE.split()[1:]) == []
    assert run(checkout, "-m", "ddpfix", "plan")[0].startswith("ddpfix ")


def test_it_is_compiled_to_the_same_bytes() -> None:
    assert FILE.read_text(encoding="utf-8") == write.sealed(Reader(YAML).plain(), YAML.read_bytes())
    assert loader.source() == YAML


def test_the_package_needs_no_yaml() -> None:
    """No command does: only what is not shipped imports it."""
    sources = [path for path in (ROOT / "ddpfix").rglob("*.py") if "compiling" not in path.parts]
    assert not [path for path in sources if "import yaml" in path.read_text(encoding="utf-8")]
    code = (
        "import sys; sys.modules['yaml'] = None\n"
        "from ddpfix.cli.main import main\n"
        "for words in (['plan'], ['plan', '--json'], ['explain', 'torch.flag'], ['doctor', '--json']): main(words)\n"
        "assert not [name for name in sys.modules if name.startswith('ddpfix.matrix.compiling')]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=str(ROOT), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
