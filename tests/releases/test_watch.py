"""What became of a row in a release: on releases that are made here, each with one change."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import pytest

from ddpfix.matrix.model import Target
from tests.releases import made
from tests.releases.code import Code

EPOCH = Target("kit.train", "Trainer.epoch", ("data", "flag"))
SAVE = Target("kit.train", "Trainer.save")
FIT = Target("kit", "fit", ("model",))


def changed(old: str, new: str) -> Dict[str, str]:
    """The files of the tested release with one change."""
    assert old in made.FILES["kit/train.py"]
    return {**made.FILES, "kit/train.py": made.FILES["kit/train.py"].replace(old, new)}


def only(row: Dict[str, Any]) -> Dict[str, Any]:
    assert len(row["places"]) == 1
    return dict(row["places"][0])


DEFINITION, RETURNS = "def epoch(self, data, flag=False):", "return [self.save(each) for each in data]"
INDENT = " " * 16


@pytest.mark.parametrize(
    "old, new",
    [
        (DEFINITION, DEFINITION.replace(" ", f"\n{INDENT}").replace("def\n" + INDENT, "def ")),
        (RETURNS, f"# A comment.\n{INDENT}{RETURNS}"),
        (DEFINITION, f'def epoch(self, data: list, flag: bool = False) -> list:\n{INDENT}"""Words."""'),
        ("class Base:", "NEW = 1\n\n\n        class Base:"),
    ],
    ids=["formatting", "a comment", "annotations and a docstring", "something else"],
)
def test_a_row_holds_where_nothing_is_done_differently(old: str, new: str) -> None:
    row = made.row(changed(old, new), [EPOCH])
    assert row["verdict"] == "holds" and only(row)["state"] == "same"
    assert row["position"] == "inside" and row["against"] == ["1.0"] and row["line"] == 7


def test_a_changed_body_is_shown() -> None:
    row = made.row(changed("for each in data]", "for each in reversed(data)]"), [EPOCH])
    place = only(row)
    assert row["verdict"] == "look" and place["state"] == "changed"
    assert place["message"] == "its body has changed"
    assert "-    return [self.save(each) for each in data]\n" in place["diff"]
    assert "+    return [self.save(each) for each in reversed(data)]\n" in place["diff"]
    assert place["diff"].startswith("--- kit 1.0 kit.train:Trainer.epoch line 14\n+++ kit 1.1 kit.train:Trainer.epoch")


def test_a_changed_signature_is_named() -> None:
    row = made.row(changed("data, flag=False", "data, flag=False, *, more=None"), [EPOCH])
    assert only(row)["message"] == "its signature has changed: takes more"
    row = made.row(changed("folder):", "place):"), [SAVE])
    assert only(row)["message"] == "its signature has changed: no longer takes folder, takes place"


def test_a_parameter_that_the_patch_needs_and_that_is_gone() -> None:
    place = only(made.row(changed("data, flag=False", "data"), [EPOCH]))
    assert place["state"] == "refused"
    assert place["message"] == "no longer takes flag: the patch would not be put in place"


def test_a_function_that_has_moved() -> None:
    files = changed("def epoch", "def other")
    files["kit/engine/loop.py"] = "class Trainer:\n    def epoch(self, data, flag=False):\n        pass\n"
    place = only(made.row(files, [EPOCH]))
    assert place["state"] == "gone"
    assert "that name is now at kit.engine.loop:Trainer.epoch" in place["message"]


def test_a_function_that_is_still_imported_where_it_was() -> None:
    """What is imported there is another function's home: the place is looked at, because more than it may be gone."""
    files = {**made.FILES, "kit/__init__.py": "from kit.loops import fit\n"}
    files["kit/loops.py"] = files["kit/train.py"]
    place = only(made.row(files, [FIT]))
    assert place["state"] == "moved"
    assert place["message"] == "was kit.train:fit, is kit.loops:fit now"


def test_a_function_that_is_gone() -> None:
    place = only(made.row(changed("def epoch", "def other"), [EPOCH]))
    assert place["state"] == "gone" and place["message"].endswith("nor anything of that name")
    assert only(made.row({"kit/__init__.py": ""}, [EPOCH]))["state"] == "gone"


def test_an_inherited_method_is_followed_to_its_base() -> None:
    assert made.row(changed("def epoch", "def other"), [SAVE])["verdict"] == "holds"
    assert made.row(changed("return folder", "return None"), [SAVE])["verdict"] == "look"


def test_imports_that_lead_in_a_circle_end() -> None:
    files = {"kit/__init__.py": "from kit.train import fit", "kit/train.py": "from kit import *\nfrom kit import fit"}
    assert Code(made.tree(files)).find("kit:fit") is None


def test_a_dataclass_has_the_constructor_of_its_fields() -> None:
    at = Target("kit.options", "Options.__init__", ("timeout",))
    text = "from dataclasses import dataclass\n\n@dataclass\nclass Options:\n    timeout: int = 3\n"
    before = {"kit/options.py": text}
    assert made.row({**made.FILES, **before}, [at], before=before)["verdict"] == "holds"
    row = made.row({**made.FILES, "kit/options.py": text.replace("timeout", "wait")}, [at], before=before)
    assert only(row)["state"] == "refused"


def test_a_module_that_cannot_be_parsed_needs_a_look() -> None:
    for text in ("def fit(:\n", "\0", "x = " + "(" * 5000, "# -*- coding: nothing -*-\n"):
        place = only(made.row({**made.FILES, "kit/train.py": text}, [EPOCH]))
        assert place["state"] == "unreadable", text[:20]
        assert "kit.train" in place["message"]


# A layer is skipped by chance in one function, and the other has nothing to do with it.
LAYERS = """
    import torch

    class Encoder:
        def forward(self, states):
            for layer in self.layers:
                if self.training and torch.rand([]) < self.layerdrop:
                    continue
                states = layer(states)
            return states

        def other(self):
            return 1
    """


def test_of_a_whole_module_the_functions_that_draw_for_layers_count() -> None:
    at = Target("kit.models.*", "*")
    before = {"kit/models/one.py": LAYERS}

    def found(text: str, **more: str) -> Dict[str, Any]:
        files = {**made.FILES, "kit/models/one.py": text, **more}
        return made.row(files, [at], before=before, setting="layerdrop")

    assert found(LAYERS)["verdict"] == "holds"
    assert found(LAYERS.replace("return 1", "return 2"))["verdict"] == "holds"
    states = {each["at"]: each["state"] for each in found(LAYERS.replace("continue", "break"))["places"]}
    assert states == {"kit.models.one:Encoder.forward": "changed", "kit.models.*:*": "same"}
    lost = found(LAYERS.replace("torch.rand([])", "0.5"))["places"][0]
    assert lost["message"] == "no longer draws for its layers"
    new = found(LAYERS, **{"kit/models/two.py": LAYERS})["places"][0]
    assert (new["at"], new["state"]) == ("kit.models.two:Encoder.forward", "new")
    assert found(LAYERS.replace("class Encoder", "class Coder"))["places"][0]["state"] == "gone"


def test_of_a_module_without_layers_all_functions_count() -> None:
    at = Target("kit.train", "*")
    assert made.row(made.FILES, [at])["places"] == [
        {"at": "kit.train:*", "state": "same", "message": "3 functions", "diff": ""}
    ]
    assert made.row(changed("return folder", "return None"), [at])["places"][0]["at"] == "kit.train:Base.save"


FORWARD = """
    class Model:
        def forward(self, x):
            return self.helper(x)

        def helper(self, x):
            return x + 1

        def unrelated(self):
            return 0
    """


def test_an_examined_forward_is_found_by_its_hash() -> None:
    from tests.releases.examined import digest

    code = Code(made.tree({"kit/model.py": FORWARD}))
    owner = code.find("kit.model:Model")
    assert owner is not None
    hashes = {"Model": (digest(code, owner),)}
    before = {"kit/model.py": FORWARD}

    def found(text: str) -> Dict[str, Any]:
        return only(made.row({**made.FILES, "kit/model.py": text}, [], before=before, examined=hashes))

    assert found(FORWARD)["state"] == "same"
    assert found(FORWARD.replace("return 0", "return 5"))["state"] == "same"
    helper = found(FORWARD.replace("x + 1", "x + 2"))
    assert helper["state"] == "changed" and "has changed in helper" in helper["message"]
    assert "-    return x + 1" in helper["diff"]
    assert found(FORWARD.replace("class Model", "class Net"))["state"] == "gone"


def test_the_hash_is_the_one_that_the_engine_makes() -> None:
    """Of a class of torch's kind, made by an import, and of the same class read from its file."""
    from ddpfix.patching import source_hash
    from tests.releases.examined import digest
    from tests.unit import test_source_hash as classes

    text = Path(classes.__file__).read_text(encoding="utf-8")
    code = Code(made.tree({"kit/classes.py": text}))
    for kind in (classes.Model, classes.Reformatted, classes.Overridden, classes.Unrelated):
        owner = code.find(f"kit.classes:{kind.__name__}")
        assert owner is not None
        assert digest(code, owner) == source_hash.of_forward(kind()), kind


def test_a_release_behind_the_row_is_compared_by_it() -> None:
    row = made.row(made.FILES, [EPOCH], version="2.3")
    assert (row["position"], row["verdict"]) == ("outside", "holds")


def test_a_tested_release_holds() -> None:
    row = made.row({}, [EPOCH], version="1.0")
    assert (row["position"], row["verdict"], row["places"]) == ("tested", "holds", [])


def test_a_place_is_the_same_where_it_is_as_in_one_of_two_tested_releases() -> None:
    from packaging.version import Version

    from tests.releases.watch import Watch

    whole = made.matrix(EPOCH, SAVE)
    whole = whole._replace(rows=(whole.rows[0]._replace(tested=(Version("1.0"), Version("1.9"))),))
    later = changed("for each in data]", "for each in reversed(data)]")
    later["kit/train.py"] = later["kit/train.py"].replace("return folder", "return None")
    trees = {"1.0": made.FILES, "1.9": later}
    watch = Watch(whole, "kit", lambda tested: made.tree(trees[str(tested)], str(tested)))
    # One function is as it was, the other one as it is later.
    mixed = changed("for each in data]", "for each in reversed(data)]")
    (row,) = watch.release(Version("1.5"), made.tree(mixed, "1.5"))["rows"]
    assert row["against"] == ["1.0", "1.9"] and row["verdict"] == "holds"
    third = changed("for each in data]", "for each in sorted(data)]")
    (row,) = watch.release(Version("1.5"), made.tree(third, "1.5"))["rows"]
    assert [place["state"] for place in row["places"]] == ["changed", "same"]
