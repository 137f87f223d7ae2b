"""The command, on releases that are made here: what has changed in them, where they come from, what is refused."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

from ddpfix.matrix import loader
from tests.releases.__main__ import main, versions
from tests.releases.code import Tree

# A place of WeNet that a patch is put on, and nothing else of it.
EXECUTOR = """
class Executor:
    def train(self, model, data_loader, train_data_loader, cv_data_loader, configs):
        return [model(each) for each in data_loader]
"""
CHANGED = EXECUTOR.replace(" data_loader, train", " train").replace("configs", "x='\x1b]0;title\x07[red]\x9b31m\u202e'")
MODULE = "wenet/utils/executor.py"
KNOWN = str(versions(loader.load(), "wenet")[-1])


def wheel(path: Path, text: str = EXECUTOR) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MODULE, text)
        archive.writestr("wenet-9.9.dist-info/METADATA", "Name: wenet\n")


def sdist(path: Path, files: Dict[str, str]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))


def folder(path: Path, text: str) -> None:
    (path / MODULE).parent.mkdir(parents=True)
    (path / MODULE).write_text(text, encoding="utf-8")


def run(capsys: Any, *words: str) -> Tuple[int, str, str]:
    code = main([*words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: Any) -> Path:
    """A folder of archives, which is all that pip is set up for."""
    place = tmp_path / "shelf"
    place.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(place))
    return place


def test_the_newest_release_and_pre_release_come_from_where_pip_looks(shelf: Path, capsys: Any) -> None:
    """What a release says cannot command the terminal."""
    for version, text in ((KNOWN, EXECUTOR), ("9.9", EXECUTOR.replace("each in", "each  in")), ("10.0rc1", CHANGED)):
        wheel(shelf / f"wenet-{version}-py3-none-any.whl", text)
    code, out, err = run(capsys, "wenet")
    assert code == 1, err
    same, _, changed = out.partition(f"wenet 10.0rc1, compared with {KNOWN}")
    assert same.startswith(f"wenet 9.9, compared with {KNOWN}") and "has changed" not in same
    assert "wenet.utils.executor:Executor.train has changed: wenet." in changed
    assert "-def train(self, model, data_loader, train_data_loader" in changed
    assert "[red]" in out and "\\x1b]0;title" in out and not set(out) & set("\x1b\x07\x9b\u202e")
    assert run(capsys, "wenet==9.9")[0] == 0
    code, _, err = run(capsys, "wenet==9")
    assert code == 2 and "no registry has wenet 9" in err


def test_an_sdist_is_not_run(shelf: Path, capsys: Any, tmp_path: Path) -> None:
    """pip would run its build to learn the metadata."""
    wheel(shelf / f"wenet-{KNOWN}-py3-none-any.whl")
    trap = f"open({str(tmp_path / 'trapped')!r}, 'w')\n"
    files = {"setup.py": trap, "wenet/__init__.py": trap, "pyproject.toml": "", MODULE: trap + EXECUTOR}
    sdist(shelf / "wenet-9.9.tar.gz", {f"wenet-9.9/{name}": text for name, text in files.items()})
    assert run(capsys, "wenet")[0] == 0
    assert not (tmp_path / "trapped").exists()


@pytest.mark.parametrize("inside", ["", "src"])
def test_a_release_on_no_registry_is_read_from_a_folder(shelf: Path, tmp_path: Path, capsys: Any, inside: str) -> None:
    for version, text in ((KNOWN, EXECUTOR), ("9.9", CHANGED)):
        folder(tmp_path / "trees" / "wenet" / version / inside, text)
    code, out, _ = run(capsys, "wenet==9.9", "--trees", str(tmp_path / "trees"))
    assert code == 1 and "wenet.utils.executor:Executor.train has changed" in out
    code, out, _ = run(capsys, "wenet")
    assert code == 0 and out == "wenet is on no registry: wenet==VERSION --trees FOLDER\n"


@pytest.mark.parametrize(
    "words, said",
    [
        (["nothing==1"], "'nothing' is no toolkit with tested releases; expected "),
        (["funasr==one"], "'one' is not a version"),
        (["funasr=="], "'' is not a version"),
        (["wenet==9.9", "--trees", "missing"], "no registry has wenet"),
        (["wenet==9.9", "--trees", "empty"], "has no package wenet"),
    ],
)
def test_bad_input_is_refused(
    shelf: Path, tmp_path: Path, capsys: Any, monkeypatch: Any, words: List[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty", "wenet", KNOWN).mkdir(parents=True)
    code, out, err = run(capsys, *words)
    assert code == 2 and out == "" and said in err and err.startswith("ddpfix: ") and err.count("\n") == 1


@pytest.mark.sampled(inside=False, cells=True)
def test_a_real_sdist_and_a_wheel_of_which_few_modules_are_fetched(capsys: Any, monkeypatch: Any) -> None:
    """fastNLP is on the registry as an sdist only; a wheel of torch has half a gigabyte, each module is a request."""
    code, out, err = run(capsys, "fastNLP==0.7.0")
    assert code == 1 and " has changed: fastnlp." in out, err
    read: List[str] = []
    source = Tree.source

    def noted(self: Tree, module: str) -> str:
        read.append(module)
        return source(self, module)

    monkeypatch.setattr(Tree, "source", noted)
    code, out, err = run(capsys, "torch==2.12.0")
    assert "torch 2.12.0, compared with" in out and len(set(read)) < 60, (err, len(set(read)))
