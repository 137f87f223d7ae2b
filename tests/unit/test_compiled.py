"""The compiled matrix says what the YAML says, and is not read where it was made from another one."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddpfix.matrix import compiled, loader, places
from ddpfix.matrix.model import Matrix


@pytest.fixture
def both(tmp_path: Path) -> Any:
    """(matrix from the YAML, path of the compiled one, path of the YAML)."""
    yaml = tmp_path / "compat_matrix.yaml"
    yaml.write_bytes(loader.default_path().read_bytes())
    whole = loader.load(yaml)
    path = tmp_path / compiled.NAME
    path.write_text(compiled.dump(whole, yaml.read_bytes()), encoding="utf-8")
    return whole, path, yaml


@pytest.mark.parametrize("content", [b"{}", b"[]", b"3", b'{"digest": 1}', b"[" * 100_000])
def test_content_of_another_kind_is_left(content: bytes) -> None:
    sealed = hashlib.sha256(content).hexdigest().encode() + b"\n" + content
    assert compiled.of(sealed, b"") is None


@pytest.mark.parametrize("name", ["version_files", "toolkits", "patches", "order", "gate", "marks"])
def test_a_part_that_is_missing_or_of_another_kind_is_left(both: Any, name: str) -> None:
    _, path, yaml = both
    for other in ({}, {name: 3}, {name: [3]}, {name: {"x": 3}}):
        whole = json.loads(path.read_bytes().partition(b"\n")[2])
        del whole[name]
        content = json.dumps({**whole, **other}).encode()
        found = compiled.of(compiled._digest(content).encode() + b"\n" + content, yaml.read_bytes())
        assert found is None or isinstance(found, Matrix)
    content = json.dumps({key: value for key, value in whole.items() if key != name}).encode()
    assert compiled.of(compiled._digest(content).encode() + b"\n" + content, yaml.read_bytes()) is None


def test_nothing_is_lost(both: Any) -> None:
    whole, path, yaml = both
    found = compiled.load(path, yaml)
    assert isinstance(found, Matrix)
    assert (found.toolkits, found.patches, found.version_files) == (whole.toolkits, whole.patches, whole.version_files)
    assert list(found.rows) == list(whole.rows) and len(found.rows) == len(whole.rows) > 200
    assert any(patch.examined for patch in found.patches.values())
    assert any(patch.instead for patch in found.patches.values())
    assert found.marks == whole.marks
    for patch in whole.patches:
        assert found.rows_of(patch) == whole.rows_of(patch)
    assert found.rows[3] == whole.rows[3] and found.rows[-2:] == list(whole.rows[-2:])


def test_rows_are_made_when_they_are_first_read(both: Any) -> None:
    _, path, yaml = both
    rows: Any = compiled.load(path, yaml).rows  # type: ignore[union-attr]
    assert not rows._made
    assert rows.of("torch.late") and list(rows._made) == ["torch.late"] and len(rows._made["torch.late"]) == 2
    assert rows.of("torch.unused")[0] is rows.of("torch.unused")[0] and rows.of("no.such") == []


def test_an_edited_yaml_is_read_itself(both: Any) -> None:
    _, path, yaml = both
    yaml.write_bytes(yaml.read_bytes() + b"# a note\n")
    assert compiled.load(path, yaml) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"digest": 1}', "null"])
def test_what_is_no_compiled_matrix_is_left(both: Any, text: str) -> None:
    _, path, yaml = both
    path.write_text(text, encoding="utf-8")
    assert compiled.load(path, yaml) is None


def test_one_of_another_shape_is_left(both: Any) -> None:
    _, path, yaml = both
    whole = json.loads(path.read_text(encoding="utf-8").partition("\n")[2])
    whole["patches"][0]["colour"] = "red"
    text = json.dumps(whole)
    path.write_text(f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}", encoding="utf-8")
    assert compiled.load(path, yaml) is None


def test_a_damaged_one_is_left(both: Any) -> None:
    """Also where it is still JSON of the right shape: its rows are read later."""
    _, path, yaml = both
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"status":"cured"', '"status":"cursed"', 1), encoding="utf-8")
    assert compiled.load(path, yaml) is None


def test_there_is_none_in_a_checkout() -> None:
    assert not loader.default_path().with_name(compiled.NAME).exists()
    assert places.patches().is_dir()


def test_a_compiled_matrix_needs_no_yaml(both: Any) -> None:
    code = (
        "import sys; from pathlib import Path; from ddpfix.matrix import compiled, detect, loader, resolve, settings\n"
        "whole = compiled.load(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "chosen = settings.read({}, whole.patches, {}, Path('/nowhere'))\n"
        "found = resolve.resolve(whole, detect.installed_versions(whole), chosen)\n"
        "print(len(found), 'yaml' in sys.modules)\n"
    )
    whole, path, yaml = both
    done = subprocess.run([sys.executable, "-c", code, str(path), str(yaml)], capture_output=True, text=True)
    assert done.stdout == f"{len(whole.patches)} False\n", done.stderr
