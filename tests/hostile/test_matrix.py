"""A matrix that nobody should write: a MatrixError and nothing else, and no import that the package does not ship."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpfix import engine
from ddpfix.matrix import compiled, places
from ddpfix.matrix.compiling.reader import Reader
from ddpfix.matrix.model import Matrix, MatrixError
from tests.hostile import values
from tests.support.compiled import ROOT
from tests.unit.test_matrix import GOOD

PLAIN = yaml.safe_load(GOOD)


def read(folder: Path, content: bytes) -> Optional[Matrix]:
    """The matrix, or None where it is refused; anything else fails."""
    file = folder / "matrix.yaml"
    file.write_bytes(content)
    try:
        return Reader(file).matrix()
    except MatrixError as error:
        assert str(error).startswith(f"{file}:")
        return None


def check(matrix: Optional[Matrix]) -> None:
    """All code that it names is shipped."""
    if matrix is None:
        return
    for patch in matrix.patches.values():
        codes = [patch.code, *(patch.code_at(t) for row in matrix.rows_of(patch.id) for t in row.targets)]
        for code in filter(None, codes):
            file, _, function = code.partition(":")
            path = places.patches().joinpath(*file.split(".")).with_suffix(".py").resolve()
            assert places.patches().resolve() in path.parents, code
            assert f"\ndef {function}(" in path.read_text(encoding="utf-8")


def changed(change: Any, place: List[int]) -> bytes:
    plain = values.with_one_changed(PLAIN, change, place)
    # JSON is YAML, but for a few of its texts, which are as good here.
    return json.dumps(plain, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass")


CODES = st.sampled_from(["os:system", "..os:system", "common.lines:sys", "common.lines:x", "common:lines", "a/../b:c"])
CHANGES = st.one_of(values.values.filter(lambda each: not _is_huge(each)), CODES)


def _is_huge(value: Any) -> bool:
    try:
        json.dumps(value)
    except ValueError:
        return True
    return False


@values.FEW
@given(change=CHANGES, place=st.lists(st.integers(0, 9), max_size=7))
def test_one_value_is_another_one(tmp_path_factory: pytest.TempPathFactory, change: Any, place: List[int]) -> None:
    check(read(tmp_path_factory.getbasetemp(), changed(change, place)))


@values.FEW
@given(data=st.data())
def test_one_place_of_the_text_is_another_one(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(GOOD)))
    end = data.draw(st.integers(begin, min(len(GOOD), begin + 40)))
    text = GOOD[:begin] + data.draw(values.texts) + GOOD[end:]
    check(read(tmp_path_factory.getbasetemp(), text.encode("utf-8", "surrogatepass")))


@pytest.mark.sampled(inside=False)
@settings(values.MANY)
@given(change=CHANGES, place=st.lists(st.integers(0, 9), max_size=7), junk=st.binary(max_size=60))
def test_many_more(tmp_path_factory: pytest.TempPathFactory, change: Any, place: List[int], junk: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    check(read(folder, changed(change, place)))
    check(read(folder, junk))
    check(read(folder, GOOD.encode()[: len(junk) * 20] + junk))


WHOLE = (ROOT / "ddpfix" / compiled.NAME).read_text(encoding="utf-8")
DIGEST, NAMES, TEXT = WHOLE.split("\n")
COMPILED: Dict[str, Any] = json.loads(TEXT)


@settings(values.FEW, max_examples=20)
@given(change=CHANGES, place=st.lists(st.integers(0, 30), max_size=7))
def test_a_compiled_matrix_that_is_damaged(change: Any, place: List[int]) -> None:
    """Its rows are read long after it was accepted."""
    text = json.dumps(values.with_one_changed(COMPILED, change, place), separators=(",", ":"))
    found = compiled.of(f"{DIGEST}\n{NAMES}\n{text}".encode("utf-8", "surrogatepass"))
    assert (found is not None) == (text == TEXT)


@values.FEW
@given(code=st.one_of(CODES, values.texts, st.from_regex(r"[a-z.]{0,12}:[a-z_]{0,9}", fullmatch=True)))
def test_a_code_is_looked_for_in_the_package_alone(code: str) -> None:
    before = set(sys.modules)
    try:
        found = engine._code(code)
    except (ImportError, AttributeError, ValueError, TypeError):
        found = None
    new = {name for name in set(sys.modules) - before if not name.startswith("ddpfix.")}
    # What a shipped module imports by itself is its own business.
    assert not new or code.startswith(tuple(shipped())), new
    assert found is None or code.partition(":")[0] in shipped(), code


def shipped() -> List[str]:
    root = places.patches()
    names = [".".join(path.relative_to(root).with_suffix("").parts) for path in root.rglob("*.py")]
    return [name[: -len(".__init__")] if name.endswith(".__init__") else name for name in names]


def test_the_walk_finds_what_is_shipped() -> None:
    assert "torch.unused.flag" in shipped() and "common" in shipped()
