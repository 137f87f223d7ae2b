"""The command: what it reads, what it refuses, what it prints; on archives that are made here."""

from __future__ import annotations

import io
import json
import os
import tarfile
import zipfile
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

from tests.releases import registry, tree
from tests.releases.command import main

# A place of WeNet that a patch is put on, and nothing else of it.
EXECUTOR = """
class Executor:
    def train(self, model, data_loader, train_data_loader, cv_data_loader, configs):
        return [model(each) for each in data_loader]
"""
MODULE = "wenet/utils/executor.py"


def folder(path: Path, text: str = EXECUTOR) -> Path:
    file = path / MODULE
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="utf-8")
    return path


def wheel(path: Path, text: str = EXECUTOR) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MODULE, text)
        archive.writestr("wenet-3.2.1.dist-info/METADATA", "Name: wenet\n")
    return path


def sdist(path: Path, files: Dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def run(capsys: Any, *words: str) -> Tuple[int, str, str]:
    code = main([*words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def executors(out: str) -> List[Dict[str, Any]]:
    """What was found about the place that is there."""
    (release,) = json.loads(out)["releases"]
    places = [place for row in release["rows"] for place in row["places"]]
    return [place for place in places if place["at"] == "wenet.utils.executor:Executor.train"]


@pytest.mark.parametrize("kind", ["folder", "checkout", "package", "wheel", "sdist"])
def test_a_release_is_read_from_a_path(tmp_path: Path, capsys: Any, kind: str) -> None:
    given = {
        "folder": lambda: folder(tmp_path / "site-packages"),
        "checkout": lambda: folder(tmp_path / "clone" / "src").parent,
        "package": lambda: folder(tmp_path / "a") / "wenet",
        "wheel": lambda: wheel(tmp_path / "wenet-3.2.1-py3-none-any.whl"),
        "sdist": lambda: sdist(tmp_path / "wenet-3.2.1.tar.gz", {f"wenet-3.2.1/{MODULE}": EXECUTOR}),
    }[kind]()
    old = folder(tmp_path / "old", EXECUTOR.replace("each in", "each  in"))
    words = ["wenet==3.2.1", "--from", str(given), "--against", "3.2.0.dev0", "--against-from", str(old), "--json"]
    code, out, _ = run(capsys, *words)
    # All the other places are missing.
    assert code == 1
    assert executors(out) and {place["state"] for place in executors(out)} == {"same"}
    old.joinpath(MODULE).write_text(EXECUTOR.replace("model(each)", "each"), encoding="utf-8")
    code, out, _ = run(capsys, *words)
    assert {place["state"] for place in executors(out)} == {"changed"}


def test_without_a_tested_release_nothing_holds(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(registry.Registry, "open", lambda *rest: pytest.fail("asked the registry"))
    given = folder(tmp_path / "hydra")
    (given / "hydra").mkdir()
    (given / "hydra" / "main.py").write_text("def main(config_path=None, config_name=None):\n    pass\n")
    code, out, _ = run(capsys, "hydra==9.9", "--from", str(given))
    assert code == 1 and "not compared" in out and "needs a look" not in out.split("rows:")[0]


@pytest.mark.parametrize(
    "words, said",
    [
        (["nothing==1"], "'nothing' is no toolkit of the matrix; expected torch, "),
        (["funasr==one"], "'one' is not a version"),
        (["funasr=="], "'' is not a version"),
        (["funasr", "--from", "."], "--from needs the release beside it"),
        (["funasr==1.4.16", "--against-from", "."], "--against-from needs --against"),
        (["--against", "1.4.16"], "--against needs a toolkit"),
        (["funasr==1.4.16", "--from", "missing"], "is neither a folder nor a file"),
        (["funasr==1.4.16", "--from", "empty"], "has no package funasr"),
        (["funasr==1.4.16", "--from", "damaged.whl"], "is neither a wheel nor an sdist, or is damaged"),
        (["funasr==1.4.16", "--from", "cut.tar.gz"], "is neither a wheel nor an sdist, or is damaged"),
        (["funasr==1.4.16", "--from", "pipe"], "is neither a folder nor a file"),
        (["funasr==1.4.16", "--from", "a\0b"], "is neither a folder nor a file"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value).replace("\0", "NUL"),
)
def test_bad_input_is_refused(tmp_path: Path, capsys: Any, monkeypatch: Any, words: List[str], said: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("damaged.whl").write_bytes(b"PK\3\4 and nothing else")
    whole = sdist(tmp_path / "whole.tar.gz", {"a/b.py": "x = 1\n" * 10000})
    Path("cut.tar.gz").write_bytes(whole.read_bytes()[:60])
    os.mkfifo("pipe")
    code, out, err = run(capsys, *words)
    assert code == 2 and out == "" and said in err and err.startswith("ddpfix: ") and err.count("\n") == 1


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


def test_releases_come_from_where_pip_looks(shelf: Path, capsys: Any) -> None:
    for version, text in (("3.2.0.dev0", EXECUTOR), ("3.2.1", EXECUTOR), ("3.3.0rc1", EXECUTOR.replace("each)", "0)"))):
        wheel(shelf / f"wenet-{version}-py3-none-any.whl", text)
    code, out, err = run(capsys, "wenet", "--json")
    assert code == 1, err
    releases = json.loads(out)["releases"]
    assert [(each["version"], each["kind"]) for each in releases] == [("3.2.1", "release"), ("3.3.0rc1", "pre-release")]
    states = [
        {p["state"] for row in each["rows"] for p in row["places"] if p["at"].endswith("Executor.train")}
        for each in releases
    ]
    assert code == 1 and states == [{"same"}, {"changed"}]
    assert releases[0]["untested"] == ["3.2.1"]
    code, _, err = run(capsys, "wenet==3.2.1", "--against", "3.1.0")
    assert code == 2 and "no registry has wenet 3.1.0" in err
    code, _, err = run(capsys, "wenet==9")
    assert code == 2 and "no registry has wenet 9" in err


def test_a_tested_release_that_cannot_be_had_is_told(shelf: Path, capsys: Any, tmp_path: Path) -> None:
    code, out, _ = run(capsys, "wenet==3.1.1", "--from", str(folder(tmp_path / "tree")), "--json")
    assert code == 1 and "nothing is compared with wenet 3.1.0: no registry has wenet 3.1.0" in json.loads(out)["notes"]
    assert {place["state"] for place in executors(out)} == {"there"}


def test_an_sdist_is_not_run(shelf: Path, capsys: Any, tmp_path: Path) -> None:
    """pip would run its build to learn the metadata."""
    wheel(shelf / "wenet-3.2.0.dev0-py3-none-any.whl")
    trap = f"open({str(tmp_path / 'trapped')!r}, 'w')\n"
    files = {"setup.py": trap, "wenet/__init__.py": trap, "pyproject.toml": "", MODULE: trap + EXECUTOR}
    sdist(shelf / "wenet-3.2.1.tar.gz", {f"wenet-3.2.1/{name}": text for name, text in files.items()})
    _, out, _ = run(capsys, "wenet==3.2.1", "--json")
    assert {place["state"] for place in executors(out)} == {"same"}
    assert not (tmp_path / "trapped").exists()


def test_a_registry_that_does_not_answer(shelf: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    code, _, err = run(capsys, "funasr==1.4.16")
    assert code == 2 and err.startswith("ddpfix: ") and err.count("\n") == 1


def test_a_link_in_an_archive_is_left_alone(tmp_path: Path) -> None:
    path = sdist(tmp_path / "a.tar.gz", {f"a/{MODULE}": EXECUTOR})
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as archive:
        for name, kind in (("wenet/link.py", tarfile.SYMTYPE), ("wenet/device.py", tarfile.CHRTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
        archive.addfile(tarfile.TarInfo("wenet/real.py"), io.BytesIO())
    assert list(tree.of_archive("wenet", "-", path).paths) == ["wenet.utils.executor"]
    assert list(tree.of_archive("wenet", "-", tmp_path / "b.tar.gz").paths) == ["wenet.real"]


def test_a_module_that_is_no_file_or_too_long(tmp_path: Path) -> None:
    root = folder(tmp_path / "a") / "wenet"
    os.mkfifo(root / "pipe.py")
    (root / "device.py").symlink_to("/dev/zero")
    (root / "circle").symlink_to(root)
    with open(root / "long.py", "wb") as file:
        file.truncate(tree.LIMIT + 10)
    found = tree.of_folder("wenet", "-", tmp_path / "a")
    assert sorted(found.paths) == ["wenet.device", "wenet.long", "wenet.pipe", "wenet.utils.executor"]
    for module, said in (("device", "it is no file"), ("pipe", "it is no file"), ("long", "longer than 8 MB")):
        with pytest.raises(tree.Unreadable, match=said):
            found.source(f"wenet.{module}")


def test_sources_cannot_command_the_terminal(tmp_path: Path, capsys: Any) -> None:
    old = folder(tmp_path / "old", EXECUTOR)
    new = folder(
        tmp_path / "new", EXECUTOR.replace("return", "x = '\x1b]0;title\x07[red]\x9b31m\u202e'\n        return")
    )
    words = ["wenet==3.2.1", "--from", str(new), "--against", "3.2.0.dev0", "--against-from", str(old)]
    _, out, _ = run(capsys, *words)
    assert "[red]" in out and "\\x1b]0;title" in out
    assert not set(out) & set("\x1b\x07\x9b\u202e")
