"""The hash of a forward: the same for every formatting and every Python, another one for other code."""

from __future__ import annotations

import ast
import functools
import linecache
from types import ModuleType
from typing import Any

import torch.nn.parallel
import wrapt

from ddpfix.patching import report, source_hash


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
