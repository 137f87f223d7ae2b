"""The command, on releases that are made here: where they come from, what is refused."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path
from typing import Any, Callable, Dict

import pytest
from packaging.version import Version

from ddpfix.matrix import loader
from tests.releases.__main__ import main, reader
from tests.releases.code import Code, ReleaseError, Tree
from tests.releases.registry import Registry

# A place of WeNet that a patch is put on, and nothing else of it.
EXECUTOR = """
class Executor:
    def train(self, model, data_loader, train_data_loader, cv_data_loader, configs):
        return [model(each) for each in data_loader]
"""
MODULE = "wenet/utils/executor.py"


def wheel(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MODULE, EXECUTOR)
        archive.writestr("wenet-9.9.dist-info/METADATA", "Name: wenet\n")


def sdist(path: Path, files: Dict[str, str]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))


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


def source(read: Callable[[Version], Tree], version: str) -> str:
    return read(Version(version)).source("wenet.utils.executor")


def test_a_wheel_comes_from_where_pip_looks_and_an_sdist_is_not_run(shelf: Path, tmp_path: Path) -> None:
    """pip would run its build to learn the metadata."""
    wheel(shelf / "wenet-9.9-py3-none-any.whl")
    trap = f"open({str(tmp_path / 'trapped')!r}, 'w')\n"
    files = {"setup.py": trap, "wenet/__init__.py": trap, "pyproject.toml": "", MODULE: trap + EXECUTOR}
    sdist(shelf / "wenet-9.10.tar.gz", {f"wenet-9.10/{name}": text for name, text in files.items()})
    with Registry() as registry:
        read = reader(loader.load(), "wenet", registry, None)
        assert source(read, "9.9") == EXECUTOR and source(read, "9.10") == trap + EXECUTOR
        with pytest.raises(ReleaseError, match="no registry has wenet 9"):
            read(Version("9"))
    assert not (tmp_path / "trapped").exists()


@pytest.mark.parametrize("inside", ["", "src"])
def test_a_release_on_no_registry_is_read_from_a_folder(shelf: Path, tmp_path: Path, inside: str) -> None:
    file = tmp_path / "wenet" / "9.9" / inside / MODULE
    file.parent.mkdir(parents=True)
    file.write_text(EXECUTOR, encoding="utf-8")
    (tmp_path / "wenet" / "9.10").mkdir()
    with Registry() as registry:
        read = reader(loader.load(), "wenet", registry, tmp_path)
        assert source(read, "9.9") == EXECUTOR
        with pytest.raises(ReleaseError, match=r"wenet 9\.10 has no package wenet"):
            read(Version("9.10"))


def test_bad_input_is_refused(capsys: Any) -> None:
    assert main(["hashes", "nothing"]) == 2
    assert "ddpfix: 'nothing' is no toolkit with tested releases; expected " in capsys.readouterr().err


@pytest.mark.sampled(inside=False, cells=True)
def test_a_real_sdist_and_a_wheel_of_which_few_modules_are_fetched() -> None:
    """fastNLP is on the registry as an sdist only; a wheel of torch has half a gigabyte, each module is a request."""
    with Registry() as registry:
        assert registry.open("fastNLP", "fastNLP", Version("0.7.0")).source("fastNLP.core")
        place = "torch.nn.parallel.distributed:DistributedDataParallel.__init__"
        tree = registry.open("torch", "torch", Version("2.12.0"))
        assert Code(tree).find(place) is not None and len(tree._sources) < 60
