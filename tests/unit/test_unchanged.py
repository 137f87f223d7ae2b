"""What a fix relies on is unchanged: by the code of a place, or by the parameters of what it only wraps."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import pytest
import torch.nn.parallel

from ddpfix.matrix import detect, loader
from ddpfix.matrix.model import Row, Target
from ddpfix.matrix.ranges import Range
from ddpfix.patching import report, source_hash, unchanged
from tests.support.compiled import YAML

CODE = """
def plain(model, loader, *, scale=1):
    return model, loader, scale

def hidden(function):
    def wrapper(*args):
        return function(*args)
    return wrapper

class Trainer:
    @hidden
    def decorated(self, batch):
        return batch

    def train(self, model, loader):
        return model
"""


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``kit(code)`` writes and imports a package with these modules."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def made(code: str, aside: str = "def used(): return 1\n") -> Any:
        (tmp_path / "kit").mkdir(exist_ok=True)
        for name, text in (("__init__", ""), ("loop", code), ("aside", aside)):
            (tmp_path / "kit" / f"{name}.py").write_text(text)
        for name in [name for name in sys.modules if name.partition(".")[0] == "kit"]:
            monkeypatch.delitem(sys.modules, name)
        importlib.invalidate_caches()
        return importlib.import_module("kit.loop")

    return made


def row(*attributes: str, rests_on: Tuple[str, ...] = ()) -> Row:
    targets = tuple(Target("kit.loop", attribute) for attribute in attributes)
    return Row("kit.fix", Range("1.0", "2.0"), "cured", targets, (), "why", rests_on)


def known(module: Any, *attributes: str) -> Dict[str, Tuple[str, ...]]:
    return {f"kit.loop:{one}": (source_hash.of_place(module, one) or "absent",) for one in attributes}


def matrix(code: Dict[str, Tuple[str, ...]], **parameters: str) -> unchanged.Known:
    return unchanged.Known(code, {f"kit.loop:{name}": text for name, text in parameters.items()})


def first(whole: unchanged.Known, found: Row, newer: bool = True, toolkit: str = "kit") -> Any:
    return unchanged.first_changed(whole, list(map(str, found.targets)), found.rests_on, {toolkit: newer})


def test_code_counts_where_nothing_else_is_said(kit: Callable[..., Any]) -> None:
    whole = matrix(known(kit(CODE), "plain", "Trainer.train", "Trainer.decorated", "*"))
    assert first(whole, row("plain", "Trainer.train", "Trainer.decorated", "*")) is None
    # What a decorator hides is read in the file.
    kit(CODE.replace("return batch", "return batch + 1"))
    assert first(whole, row("plain", "Trainer.train", "Trainer.decorated")) == "kit.loop:Trainer.decorated"
    kit(CODE.replace("return model\n", "return model.module\n"))
    assert first(whole, row("plain")) is None
    assert first(whole, row("plain", "Trainer.train")) == "kit.loop:Trainer.train"
    assert first(whole, row("*")) == "kit.loop:*"
    assert first(whole, row("Trainer.train"), toolkit="torch") is None


def test_a_release_between_tested_ones_may_have_the_code_of_any(kit: Callable[..., Any]) -> None:
    (older,) = known(kit(CODE), "plain").values()
    (newest,) = known(kit(CODE.replace("scale\n", "None\n")), "plain").values()
    whole = matrix({"kit.loop:plain": (*newest, *older)})
    assert first(whole, row("plain")) is first(whole, row("plain"), newer=False) is None
    kit(CODE)
    assert first(whole, row("plain"), newer=False) is None
    assert first(whole, row("plain")) == "kit.loop:plain"
    kit(CODE.replace("scale\n", "loader\n"))
    assert first(whole, row("plain"), newer=False) == "kit.loop:plain"


def test_of_what_is_wrapped_parameters_count(kit: Callable[..., Any]) -> None:
    kit(CODE.replace("return model, loader, scale", "pass").replace("scale=1", "scale=1, more=2"))
    whole = matrix({}, plain="model loader | scale")
    assert first(whole, row("plain")) is None
    for other in ("model, *, scale=1", "loader, model, *, scale=1", "model, loader", "*args, **kwargs"):
        kit(CODE.replace("model, loader, *, scale=1", other))
        assert first(whole, row("plain")) == "kit.loop:plain"
        # Its row is for it.
        assert first(whole, row("plain"), newer=False) is None
    kit("from kit.aside import plain\n", aside=CODE)
    assert first(whole, row("plain")) == "kit.loop:plain"
    assert first(matrix({}, plain="kit.aside:plain model loader | scale"), row("plain")) is None


def test_what_a_row_rests_on_counts_by_its_code_and_is_not_imported(kit: Callable[..., Any]) -> None:
    code, aside = known(kit(CODE), "plain"), "kit.aside:used"
    whole = matrix({**code, aside: ("0" * 12,)}, plain="model loader | scale")
    assert first(whole, row("plain", rests_on=("kit.loop:plain",))) is None
    assert first(whole, row("plain", rests_on=(aside,))) == aside
    right = str(source_hash.of_file(str(Path(sys.modules["kit"].__path__[0], "aside.py")), "used"))
    assert first(matrix({**code, aside: (right,)}), row("plain", rests_on=(aside,))) is None
    assert first(matrix({**code, "kit.new:f": ("absent",)}), row("plain", rests_on=("kit.new:f",))) is None
    assert "kit.aside" not in sys.modules
    kit(CODE.replace("scale\n", "None\n"))
    assert first(whole, row("plain")) is None
    assert first(whole, row("plain", rests_on=("kit.loop:plain",))) == "kit.loop:plain"


def test_words_families_and_modules_that_nobody_imported_are_passed_over() -> None:
    also = ("a hook on all modules", "torch.*:*", "torch.not_imported:f", "json:dumps")
    assert unchanged.first_changed(matrix({}), also, (), {"torch": True}) is None


def imported(place: str) -> bool:
    try:
        importlib.import_module(place.partition(":")[0])
    except ImportError:
        return False
    return True


def test_what_was_tested_counts_as_unchanged() -> None:
    """Of what is installed here, row by row: what is noted from files is what is found in modules."""
    whole, compared = loader.load(), 0
    known_here = unchanged.Known(whole.code, whole.parameters)
    installed = {name: text.partition("+")[0] for name, text in detect.installed_versions(whole).items() if text}
    for found in whole.rows:
        patch = whole.patches[found.patch]
        if installed.get(patch.toolkit, "") in list(map(str, found.tested)):
            compared += all(list(map(imported, [str(target) for target in found.targets if "*" not in str(target)])))
            places = [*map(str, found.targets), *patch.also, *found.also]
            changed = unchanged.first_changed(known_here, places, found.rests_on, {patch.toolkit: False})
            assert changed is None, f"{changed}: run python -m tests.releases hashes {patch.toolkit}"
    assert compared >= 20


def test_all_that_the_newest_rows_rely_on_is_noted() -> None:
    whole = loader.load()
    last = [whole.rows_of(patch)[-1] for patch in whole.patches]
    places: List[str] = [str(p) for one in last if one.status == "cured" for p in (*one.targets, *one.rests_on)]
    known_places = {*whole.code, *whole.parameters}
    # hydra has no fixes of its own.
    assert not [p for p in places if p not in known_places and "*" not in p and not p.startswith("hydra")]
    text = YAML.read_text(encoding="utf-8")
    for toolkit in re.findall(r"^  (\w+):\n    release", text, re.MULTILINE):
        noted = f'  {toolkit}:\n    release: "{whole.newest[toolkit]}"\n'
        assert noted in text, f"run: python -m tests.releases hashes {toolkit}"


# The hash: the same for every formatting and every Python, another one for other code.

MODEL = """
class Model:
    def forward(self, x: Any, name: str = "a") -> Any:
        '''Says what it does.'''
        return self.helper(x[:, 0], f"{name} is {x}")

    def helper(self, x: Any, text: str) -> Any:
        return x + 1
"""
REFORMATTED = """
class Model:
    def forward(
        self,
        x,
        name="a",
    ):
        # A comment.
        return self.helper(x[:, 0], f"{name} was {x}")

    def helper(self, x, text):
        '''Adds.'''
        "return x + 2"
        return x + 1
"""


def test_formatting_does_not_count_and_code_does() -> None:
    texts = MODEL, REFORMATTED, MODEL.replace("x + 1", "x + 2")
    first, same, other = (source_hash.of_node(ast.parse(text)) for text in texts)
    # The same under every Python.
    assert first == same == "99030bdb716c" != other


def test_subscripts_of_python_3_8_are_those_of_today() -> None:
    old = ast.Subscript(ast.Name("x"), ast.Index(ast.Constant(0)))  # type: ignore[call-arg, arg-type]
    assert source_hash.canonical(old) == source_hash.canonical(ast.parse("x[0]", mode="eval").body)


def test_what_has_no_source_has_no_hash_but_that_of_its_class() -> None:
    assert source_hash.of_place(torch, "zeros") is None and source_hash.of_place(torch, "nothing") is None
    assert source_hash.of_place(report, "Report.__init__") == source_hash.of_place(report, "Report") is not None
