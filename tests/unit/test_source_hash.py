"""The hash of a forward: the same for every formatting and every Python, another one for other code."""

from __future__ import annotations

import ast
import functools
import linecache
import re
from types import ModuleType
from typing import Any

import torch.nn.parallel
import wrapt

from ddpfix.matrix import detect, loader
from ddpfix.patching import report, source_hash
from tests.support import hashes
from tests.support.compiled import YAML


class Model:
    def forward(self, x: Any, name: str = "a") -> Any:
        """Says what it does."""
        return self.helper(x[:, 0], f"{name} is {x}")

    def helper(self, x: Any, text: str) -> Any:
        return x + 1

    def unrelated(self) -> int:
        return 1


class Reformatted:
    """The same code, written by somebody else."""

    def forward(  # type: ignore[no-untyped-def]
        self,
        x,
        name="a",
    ):
        # A comment.
        return self.helper(  # type: ignore[no-untyped-call]
            x[:, 0],
            f"{name} was {x}",
        )

    def helper(self, x, text):  # type: ignore[no-untyped-def]
        """Adds."""
        "return x + 2"
        return x + 1


class Overridden(Model):
    def helper(self, x: Any, text: str) -> Any:
        return x + 2


class Unrelated(Model):
    def unrelated(self) -> int:
        return 2


def test_formatting_does_not_count() -> None:
    assert source_hash.of_forward(Model()) == source_hash.of_forward(Reformatted())


def test_it_is_the_same_under_every_python() -> None:
    assert source_hash.of_forward(Model()) == "54cfe6d62560"


def test_a_method_that_the_forward_calls_counts() -> None:
    assert source_hash.of_forward(Model()) != source_hash.of_forward(Overridden())
    assert source_hash.of_forward(Model()) == source_hash.of_forward(Unrelated())


def test_an_instance_with_a_method_of_its_own_has_none() -> None:
    model = Model()
    model.helper = lambda x, text: x  # type: ignore[method-assign]
    assert source_hash.of_forward(model) is None


def test_a_wrapper_does_not_pass_for_what_it_wraps() -> None:
    class Wrapped(Model):
        @functools.wraps(Model.forward)
        def forward(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
            return Model.forward(self, *args, **kwargs)

    class Proxied(Model):
        forward = wrapt.FunctionWrapper(Model.forward, lambda wrapped, instance, args, kwargs: None)  # type: ignore

    hashes = {source_hash.of_forward(kind()) for kind in (Model, Wrapped, Proxied)}
    assert len(hashes) == 3


def test_code_without_source_has_none() -> None:
    names: dict[str, Any] = {}
    exec("class Made:\n    def forward(self): return 1\n", names)
    assert source_hash.of_forward(names["Made"]()) is None


def test_subscripts_of_python_3_8_are_those_of_today() -> None:
    old = ast.Subscript(ast.Name("x"), ast.Index(ast.Constant(0)))  # type: ignore[call-arg, arg-type]
    assert source_hash.canonical(old) == source_hash.canonical(ast.parse("x[0]", mode="eval").body)


def test_the_places_of_what_is_installed_have_the_noted_code() -> None:
    """Where the newest tested release of a toolkit is installed; and each place of a newest row is noted."""
    whole = loader.load()
    for toolkit, version in detect.installed_versions(whole).items():
        if toolkit in ("torch", "accelerate", "transformers") and version == whole.newest[toolkit]:
            known = {place: whole.hashes.get(place) for place in hashes.places(whole, toolkit)}
            assert hashes.noted(whole, toolkit) == known, "run: python -m tests.support.hashes"
    last = [whole.rows_of(patch)[-1] for patch in whole.patches]
    targets = {str(target) for row in last if row.status == "cured" for target in row.targets}
    # WeNet is recognised by what its releases look like, so none is newer; hydra has no fixes of its own.
    apart = ("wenet", "hydra")
    assert not [t for t in targets if t not in whole.hashes and "*" not in t and not t.startswith(apart)]
    text = YAML.read_text(encoding="utf-8")
    for toolkit in re.findall(r"^  (\w+):\n    release", text, re.MULTILINE):
        assert f'  {toolkit}:\n    release: "{whole.newest[toolkit]}"\n' in text, "run: python -m tests.cells --hashes"


def made(text: str) -> ModuleType:
    """A module with this source."""
    file = f"<made {len(text)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    module = ModuleType("made")
    exec(compile(text, file, "exec"), vars(module))
    return module


def test_the_code_of_a_place_is_not_its_formatting() -> None:
    one = made("def f(a):\n    return a + 1\n")
    same = made('def f(a: int) -> int:\n    """One."""\n    return (a\n      + 1)\n')
    other = made("def f(a):\n    return a + 2 \n")
    assert source_hash.of_place(one, "f") == source_hash.of_place(same, "f") is not None
    assert source_hash.of_place(one, "f") != source_hash.of_place(other, "f")


def test_what_has_no_source_has_no_hash_but_that_of_its_class() -> None:
    assert source_hash.of_place(torch, "zeros") is None and source_hash.of_place(torch, "nothing") is None
    assert source_hash.of_place(report, "Report.__init__") == source_hash.of_place(report, "Report") is not None


def test_the_first_changed_place_of_the_newer_toolkits() -> None:
    place = "torch.nn.parallel.distributed:DistributedDataParallel.forward"
    right = {place: str(source_hash.of_place(torch.nn.parallel.distributed, "DistributedDataParallel.forward"))}
    passed = ["a hook on all modules", "torch.*:*", "torch.not_imported:f", "json:dumps", "torch.nn:NotThere.f"]
    assert source_hash.first_changed([*passed, place], {"torch"}, right) is None
    assert (
        source_hash.first_changed([*passed, place], {"torch"}, {**right, "torch.nn:NotThere.f": "0" * 12}) == passed[-1]
    )
    assert source_hash.first_changed([*passed, place], {"torch"}, {place: "0" * 12}) == place
    assert source_hash.first_changed([*passed, place], {"torch"}, {}) == place
    assert source_hash.first_changed([*passed, place], set(), {}) is None
