"""Definitions are found in the files of a release as an import would find them."""

from __future__ import annotations

import textwrap
from typing import Dict, List, Optional

import pytest

from ddpfix.patching import unchanged
from tests.releases import hashes
from tests.releases.code import Code, Found
from tests.releases.tree import Tree, Unreadable

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


def test_imports_that_lead_in_a_circle_end() -> None:
    files = {"kit/__init__.py": "from kit.train import fit", "kit/train.py": "from kit import *\nfrom kit import fit"}
    assert code(files).find("kit:fit") is None


@pytest.mark.parametrize("text", ["def fit(:\n", "\0", "x = " + "(" * 5000, "# -*- coding: nothing -*-\n"])
def test_a_module_that_cannot_be_parsed_has_changed(text: str) -> None:
    broken = code({**FILES, "kit/train.py": text})
    with pytest.raises(Unreadable, match=r"kit\.train"):
        broken.find("kit:fit")
    assert hashes.text_of(broken, "kit:fit") == (unchanged.ABSENT,)


DEFINITION, RETURNS = "def epoch(self, data, flag=False):", "return [self.save(each) for each in data]"
INDENT = " " * 16


@pytest.mark.parametrize(
    "old, new, is_same",
    [
        (DEFINITION, DEFINITION.replace(" ", f"\n{INDENT}").replace("def\n" + INDENT, "def "), True),
        (RETURNS, f"# A comment.\n{INDENT}{RETURNS}", True),
        (DEFINITION, f'def epoch(self, data: list, flag: bool = False) -> list:\n{INDENT}"""Words."""', True),
        ("class Base:", "NEW = 1\n\n        class Base:", True),
        (DEFINITION, DEFINITION.replace("flag", "more"), False),
        ("in data]", "in reversed(data)]", False),
        ("def epoch", "def other", False),
    ],
)
def test_the_hash_of_a_place_follows_what_it_does(old: str, new: str, is_same: bool) -> None:
    assert old in FILES["kit/train.py"]
    changed = code({**FILES, "kit/train.py": FILES["kit/train.py"].replace(old, new)})
    place = "kit.train:Trainer.epoch"
    assert (hashes.text_of(changed, place) == hashes.text_of(code(FILES), place)) == is_same
