"""Definitions are found in the files of a release as an import would find them."""

from __future__ import annotations

import io
import os
import tarfile
import textwrap
import zipfile
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import pytest
from packaging.version import Version

from ddpfix.matrix import loader
from ddpfix.matrix.model import Matrix, Patch, Row, Target
from ddpfix.matrix.ranges import Range
from ddpfix.patching import unchanged
from tests.releases import __main__ as command
from tests.releases import backtest, hashes
from tests.releases.code import Code, Found, ReleaseError, Tree, Unreadable, of_folder
from tests.releases.registry import Registry

FILES = {
    "kit/__init__.py": "from kit.train import fit\nfrom .deep import *\n",
    "kit/train.py": """
        from dataclasses import dataclass

        def fit(model, steps=3):
            '''Trains.'''
            for step in range(steps):
                model(step)

        class Base:
            def save(self, folder):
                return folder

        class Trainer(Base):
            def epoch(self, data, flag=False):
                return [self.save(each) for each in data]

        @dataclass
        class Options:
            timeout: int = 3

        run = fit
        """,
    "kit/deep/__init__.py": "from ..train import Trainer as Renamed\n",
}


def code(files: Dict[str, str]) -> Code:
    texts = {name: textwrap.dedent(text).encode("utf-8", "surrogatepass") for name, text in files.items()}
    paths = {name[:-3].replace("/", ".").replace(".__init__", ""): name for name in texts}
    return Code(Tree("kit", "kit 1.0", paths, lambda name: texts[name]))


@pytest.mark.parametrize(
    "place, found, parameters",
    [
        ("kit:fit", "kit.train:fit", ["model", "steps"]),
        ("kit.train:run", "kit.train:fit", ["model", "steps"]),
        ("kit:train.fit", "kit.train:fit", ["model", "steps"]),
        ("kit:Renamed.epoch", "kit.train:Trainer.epoch", ["self", "data", "flag"]),
        ("kit.train:Trainer.save", "kit.train:Base.save", ["self", "folder"]),
        ("kit.train:Options.__init__", "kit.train:Options", ["self", "timeout"]),
        ("kit.train:Base.epoch", None, None),
        ("kit.train:nothing", None, None),
        ("kit.nothing:fit", None, None),
    ],
)
def test_a_definition_is_found(place: str, found: Optional[str], parameters: Optional[List[str]]) -> None:
    thing: Optional[Found] = code(FILES).find(place)
    assert (None if thing is None else str(thing)) == found
    assert thing is None or thing.parameters() == parameters


@pytest.mark.parametrize("text", ["def fit(:\n", "\0", "x = " + "(" * 5000, "# -*- coding: nothing -*-\n"])
def test_a_module_that_cannot_be_parsed_has_changed(text: str) -> None:
    broken = code({**FILES, "kit/train.py": text})
    with pytest.raises(Unreadable, match=r"kit\.train"):
        broken.find("kit:fit")
    assert hashes.text_of(broken, "kit:fit") == (unchanged.ABSENT,)


# What the rule for untested releases would have done, on releases that are made here and on the kept results.


# The loop of each release: a parameter more, another body, and a body in which the fault is mended.
LOOPS = {
    "1.0": "def train(model):\n    return model\ndef clip(model):\n    return 1\n",
    "1.1": "def train(model, more=1):\n    return [model]\ndef clip(model):\n    return 2\n",
    "1.2": "def train(model, more=1):\n    return {}\ndef clip(model):\n    return 2\n",
    "2.0": "def train(model, more=1):\n    return {}\ndef clip(model):\n    return 2\n",
}
VERSIONS = tuple(map(Version, LOOPS))


def row(patch: str, place: str, end: str = "3", start: str = "1.0", **more: Any) -> Row:
    inside = tuple(each for each in VERSIONS if Version(start) <= each < Version(end))
    return Row(patch, Range(start, end), "cured", (Target("kit.loop", place),), inside, "why", **more)


def test_each_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "wrapped", lambda: {"kit.loop:train"})
    rows = (
        row("kit.wrapping", "train"),
        row("kit.mended", "train", end="1.2"),
        row("kit.resting", "train", end="1.2", rests_on=("kit.loop:train",)),
        row("kit.changing", "clip"),
    )
    patches = {each.patch: Patch(each.patch, "kit", "kit:fix", None, (), "", ()) for each in rows}
    for version, text in LOOPS.items():
        (tmp_path / version / "kit").mkdir(parents=True)
        (tmp_path / version / "kit" / "loop.py").write_text(text)
    whole = Matrix({"kit": "kit"}, patches, rows)
    found: Dict[str, Dict[str, str]] = {}
    for one in backtest.of(whole, "kit", VERSIONS, lambda version: of_folder("kit", "", tmp_path / str(version))):
        found.setdefault(one.patch, {})[one.release] = one.outcome
    assert found == {
        "kit.wrapping": {"1.1": backtest.RIGHT, "1.2": backtest.RIGHT, "2.0": backtest.HELD},
        "kit.mended": {"1.1": backtest.RIGHT, "1.2": backtest.WRONG},
        "kit.resting": {"1.1": backtest.HELD, "1.2": backtest.LEFT},
        "kit.changing": {"1.1": backtest.HELD, "1.2": backtest.RIGHT, "2.0": backtest.HELD},
    }


def test_the_rule_was_tried_on_every_release_that_we_know() -> None:
    whole, kept = loader.load(), backtest.kept()
    counts = backtest.summed(kept.values())
    assert counts[backtest.WRONG] == 0
    assert counts[backtest.RIGHT] >= 0.9 * (counts[backtest.RIGHT] + counts[backtest.HELD])
    for toolkit in whole.newest:
        released = [str(each) for each in command.versions(whole, toolkit)]
        assert toolkit in kept, f"run: python -m tests.releases backtest {toolkit}"
        assert kept[toolkit].releases == released, f"run: python -m tests.releases backtest {toolkit}"


# The command, on releases that are made here: where they come from, what is refused.


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
        read = command.reader(loader.load(), "wenet", registry, None)
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
        read = command.reader(loader.load(), "wenet", registry, tmp_path)
        assert source(read, "9.9") == EXECUTOR
        with pytest.raises(ReleaseError, match=r"wenet 9\.10 has no package wenet"):
            read(Version("9.10"))


def test_bad_input_is_refused(capsys: Any) -> None:
    assert command.main(["hashes", "nothing"]) == 2
    assert "ddpfix: 'nothing' is no toolkit with tested releases; expected " in capsys.readouterr().err


@pytest.mark.sampled(inside=False, cells=True)
def test_a_real_sdist_and_a_wheel_of_which_few_modules_are_fetched() -> None:
    """fastNLP is on the registry as an sdist only; a wheel of torch has half a gigabyte, each module is a request."""
    with Registry() as registry:
        assert registry.open("fastNLP", "fastNLP", Version("0.7.0")).source("fastNLP.core")
        place = "torch.nn.parallel.distributed:DistributedDataParallel.__init__"
        tree = registry.open("torch", "torch", Version("2.12.0"))
        assert Code(tree).find(place) is not None and len(tree._sources) < 60
