"""Site and its records: undo restores exactly what was there before, whoever has patched since."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import permutations
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, Callable, Iterator, List

import pytest
import wrapt

from ddpfix.patching.layers import CHANGES, stale_copies
from ddpfix.patching.site import Kept, PatchError, Registry, Site, one_search

KIT = """
class Base:
    def inherited(self):
        return ["base"]

    @classmethod
    def kind(cls):
        return [cls.__name__]


class Thing(Base):
    def method(self, x=0):
        return ["original", x]

    @staticmethod
    def static(x):
        return [x]

    @classmethod
    def made(cls):
        return [cls.__name__]

    @property
    def prop(self):
        return ["prop"]


class Sub(Thing):
    pass


def function(x=0):
    return ["function", x]
"""


@pytest.fixture
def kit() -> Iterator[Any]:
    """A toolkit of our own, with a module that copied a function from it."""
    made, user = ModuleType("kit_for_tests"), ModuleType("user_for_tests")
    sys.modules.update({made.__name__: made, user.__name__: user})
    exec(KIT, made.__dict__)
    user.__dict__["f"] = made.__dict__["function"]
    made.__dict__["user"] = user
    yield made
    del sys.modules[made.__name__], sys.modules[user.__name__]
    assert not [record for record in CHANGES.in_place if record.owner in (made, user, made.__dict__["Thing"])]


def adds(word: str) -> Callable[..., Any]:
    """A wrapper for wrapt that puts a word in front of the result."""

    def wrapper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return [word, *wrapped(*args, **kwargs)]

    return wrapper


def closure(word: str) -> Callable[..., Any]:
    """A maker of plain closures that put a word in front of the result."""

    def make(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return [word, *original(*args, **kwargs)]

        return call

    return make


def put(site: Site, kind: str, owner: Any, attribute: str, word: str) -> None:
    if kind == "wrap":
        site.wrap(owner, attribute, adds(word))
    else:
        site.wrap_hot(owner, attribute, closure(word))


# Second patchers, as they are found in the wild: (wrap, unwrap).


def wrapt_wrap(owner: Any, attribute: str, word: str) -> None:
    wrapt.wrap_function_wrapper(owner, attribute, adds(word))


def wraps_wrap(owner: Any, attribute: str, word: str) -> None:
    original = getattr(owner, attribute)
    setattr(owner, attribute, functools.wraps(original)(closure(word)(original)))


def bare_wrap(owner: Any, attribute: str, word: str) -> None:
    setattr(owner, attribute, closure(word)(getattr(owner, attribute)))


def naive_unwrap(owner: Any, attribute: str) -> None:
    """What ddtrace and OpenTelemetry do: the outermost layer is removed, whoever's it is."""
    setattr(owner, attribute, getattr(owner, attribute).__wrapped__)


SECOND = {"wrapt": wrapt_wrap, "wraps": wraps_wrap, "bare": bare_wrap}
kinds = pytest.mark.parametrize("kind", ["wrap", "wrap_hot"])


@kinds
def test_what_was_inherited_is_deleted(kit: Any, kind: str) -> None:
    site = Site("p")
    put(site, kind, kit.Sub, "method", "ours")
    assert kit.Sub().method() == ["ours", "original", 0] and kit.Thing().method() == ["original", 0]
    assert site.undo() == []
    assert "method" not in vars(kit.Sub)
    kit.Thing.method = lambda self: "changed above"
    assert kit.Sub().method() == "changed above"


@pytest.mark.parametrize(("attribute", "args"), [("made", ()), ("static", ("Sub",))])
def test_descriptors_are_given_back_as_they_were(kit: Any, attribute: str, args: Any) -> None:
    original = vars(kit.Thing)[attribute]
    assert isinstance(original, (classmethod, staticmethod))
    site = Site("p")
    site.wrap(kit.Thing, attribute, adds("ours"))
    assert getattr(kit.Sub, attribute)(*args) == getattr(kit.Sub(), attribute)(*args) == ["ours", "Sub"]
    assert site.undo() == []
    assert vars(kit.Thing)[attribute] is original
    assert getattr(kit.Sub, attribute)(*args) == ["Sub"]


def test_an_inherited_classmethod_still_knows_its_class(kit: Any) -> None:
    site = Site("p")
    site.wrap(kit.Sub, "kind", adds("ours"))
    assert kit.Sub.kind() == ["ours", "Sub"] and kit.Thing.kind() == ["Thing"]
    assert site.undo() == []
    assert "kind" not in vars(kit.Sub) and kit.Sub.kind() == ["Sub"]


def test_a_property_can_be_replaced(kit: Any) -> None:
    original = vars(kit.Thing)["prop"]
    site = Site("p")
    site.replace(kit.Thing, "prop", property(lambda self: ["ours"]))
    assert kit.Thing().prop == ["ours"]
    assert site.undo() == [] and vars(kit.Thing)["prop"] is original


def test_a_method_called_by_its_class_is_bound(kit: Any) -> None:
    """A subclass may call ``Base.method(self)``; the signature that a wrapper sees must not have ``self`` then."""
    seen = []

    def wrapper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        seen.append((list(inspect.signature(wrapped).parameters), instance, args))
        return wrapped(*args, **kwargs)

    one, two = Site("one"), Site("two")
    one.wrap(kit.Thing, "method", wrapper)
    two.wrap(kit.Thing, "method", wrapper)
    thing = kit.Thing()
    assert kit.Thing.method(thing, 3) == ["original", 3]
    assert seen == [(["x"], thing, (3,))] * 2
    assert two.undo() == one.undo() == []


def test_only_plain_functions_are_closed_over(kit: Any) -> None:
    site = Site("p")
    for attribute in ("made", "static", "prop"):
        with pytest.raises(PatchError, match=f"{attribute} of .* not a plain function"):
            site.wrap_hot(kit.Thing, attribute, closure("ours"))
    with pytest.raises(PatchError, match="has no attribute nothing"):
        site.wrap(kit.Thing, "nothing", adds("ours"))
    assert site.records == []


# Two patchers.


@kinds
@pytest.mark.parametrize("below", [None, *SECOND])
@pytest.mark.parametrize("above", [None, *SECOND])
@pytest.mark.parametrize("attribute", ["method", "inherited"])
def test_ours_goes_from_between_others(kit: Any, kind: str, below: Any, above: Any, attribute: str) -> None:
    expected = getattr(kit.Thing(), attribute)()
    if below:
        SECOND[below](kit.Thing, attribute, "below")
    under = vars(kit.Thing).get(attribute, getattr(kit.Thing, attribute))
    site = Site("p")
    put(site, kind, kit.Thing, attribute, "ours")
    for word in ("above", "top") if above else ():
        SECOND[above](kit.Thing, attribute, word)
    assert site.records[0].in_place()
    over, theirs = ["top", "above"] if above else [], ["below"] if below else []
    top = vars(kit.Thing)[attribute]
    assert getattr(kit.Thing(), attribute)() == [*over, "ours", *theirs, *expected]
    assert site.undo() == []
    assert getattr(kit.Thing(), attribute)() == [*over, *theirs, *expected]
    assert vars(kit.Thing).get(attribute, under) is (top if above else under)
    if above and above != "bare":
        assert top.__wrapped__.__wrapped__ is under
    for _ in over if above == "wraps" else ():
        naive_unwrap(kit.Thing, attribute)
    assert above != "wraps" or vars(kit.Thing)[attribute] is under or below == "wrapt"


def test_a_layer_below_ours_still_gets_its_instance(kit: Any) -> None:
    seen: List[Any] = []

    def theirs(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        seen.append((instance, args))
        return wrapped(*args, **kwargs)

    wrapt.wrap_function_wrapper(kit.Thing, "method", theirs)
    site = Site("p")
    site.wrap_hot(kit.Thing, "method", closure("ours"))
    thing = kit.Thing()
    assert thing.method(4) == ["ours", "original", 4]
    assert seen == [(thing, (4,))]
    site.undo()


def test_a_classmethod_below_another_layer(kit: Any) -> None:
    original = vars(kit.Thing)["made"]
    site = Site("p")
    site.wrap(kit.Thing, "made", adds("ours"))
    wrapt_wrap(kit.Thing, "made", "theirs")
    assert kit.Sub.made() == ["theirs", "ours", "Sub"]
    assert site.undo() == []
    assert kit.Sub.made() == ["theirs", "Sub"] and vars(kit.Thing)["made"].__wrapped__ is original


@kinds
def test_ours_goes_when_a_naive_unwrap_left_it_bound(kit: Any, kind: str) -> None:
    """``getattr(class, name).__wrapped__`` is not our layer but its bound form, and that is what is put back."""
    original = vars(kit.Thing)["method"]
    site = Site("p")
    put(site, kind, kit.Thing, "method", "ours")
    wrapt_wrap(kit.Thing, "method", "theirs")
    naive_unwrap(kit.Thing, "method")
    assert kit.Thing().method() == ["ours", "original", 0]
    assert site.undo() == []
    assert vars(kit.Thing)["method"] is original


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
@pytest.mark.parametrize("kinds_used", ["ooo", "fff", "ofo", "fof"])
@pytest.mark.parametrize("attribute", ["method", "inherited"])
def test_patches_of_ours_are_undone_in_any_order(kit: Any, order: Any, kinds_used: str, attribute: str) -> None:
    before = dict(vars(kit.Thing))
    expected = getattr(kit.Thing(), attribute)()
    sites = [Site(f"p{number}") for number in range(3)]
    for number, site in enumerate(sites):
        put(site, "wrap" if kinds_used[number] == "o" else "wrap_hot", kit.Thing, attribute, f"ours{number}")
    left = [f"ours{number}" for number in (2, 1, 0)]
    assert getattr(kit.Thing, attribute).__qualname__ in ("Thing.method", "Base.inherited")
    assert getattr(kit.Thing(), attribute)() == [*left, *expected]
    for number in order:
        assert sites[number].undo() == []
        left.remove(f"ours{number}")
        assert getattr(kit.Thing(), attribute)() == [*left, *expected]
    assert dict(vars(kit.Thing)) == before
    assert all(vars(kit.Thing)[name] is value for name, value in before.items())


@kinds
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=str)
def test_a_subclass_has_nothing_of_its_own_when_its_base_was_patched_too(kit: Any, kind: str, order: Any) -> None:
    sites = [Site("base"), Site("sub")]
    for site, owner in zip(sites, (kit.Thing, kit.Sub)):
        put(site, kind, owner, "inherited", site.patch)
    assert kit.Sub().inherited() == ["sub", "base", "base"]
    assert [sites[number].undo() for number in order] == [[], []]
    assert "inherited" not in {**vars(kit.Thing), **vars(kit.Sub)}


def test_two_layers_of_one_patch_go_from_below_another(kit: Any) -> None:
    site = Site("p")
    site.wrap_hot(kit.Thing, "method", closure("a"))
    site.wrap(kit.Thing, "method", adds("b"))
    wrapt_wrap(kit.Thing, "method", "theirs")
    assert site.undo() == []
    assert kit.Thing().method() == ["theirs", "original", 0]


@kinds
def test_ours_is_not_taken_for_what_somebody_put_there(kit: Any, kind: str) -> None:
    site = Site("kit.fix")
    put(site, kind, kit.Thing, "method", "ours")

    def foreign(self: Any) -> str:
        return "foreign"

    kit.Thing.method = foreign
    assert not site.records[0].in_place()
    assert site.undo() == ["kit.fix: Thing.method no longer holds ddpfix's patch: other code replaced it, and stays"]
    assert vars(kit.Thing)["method"] is foreign


def test_ours_that_somebody_deleted_is_reported(kit: Any) -> None:
    site = Site("p")
    site.wrap(kit.Sub, "method", adds("ours"))
    del kit.Sub.method
    (problem,) = site.undo()
    assert "Sub.method no longer holds ddpfix's patch" in problem
    assert "method" not in vars(kit.Sub)


def test_one_lost_layer_does_not_stop_the_others(kit: Any) -> None:
    original = vars(kit.Thing)["made"]
    site = Site("p")
    done: List[str] = []
    site.at_undo(lambda: done.append("first"))
    site.at_undo(lambda: done.append("second"))
    site.wrap(kit.Thing, "made", adds("ours"))
    site.wrap(kit.Thing, "method", adds("ours"))
    kit.Thing.method = None
    assert len(site.undo()) == 1
    assert vars(kit.Thing)["made"] is original
    assert done == ["second", "first"]


def test_an_item_of_two_patches_goes_with_the_last_of_them() -> None:
    registry: Registry[str] = Registry("here")
    first, second = Site("first"), Site("second")
    for site in (first, second):
        site.register(registry, "item")
    assert registry == ["item"]
    first.undo()
    assert registry == ["item"]
    second.undo()
    assert registry == []


def test_an_undo_that_raises_does_not_stop_the_others(kit: Any) -> None:
    site = Site("p")
    done: List[str] = []
    site.at_undo(lambda: done.append("first"))
    site.at_undo(lambda: done.remove("nothing"))
    (problem,) = site.undo()
    assert problem.startswith("p: ValueError(") and done == ["first"]


# Functions of modules, and their copies.


@kinds
def test_copies_made_while_ours_was_in_place_are_given_back_too(kit: Any, kind: str) -> None:
    original = kit.function
    site = Site("p")
    put(site, kind, kit, "function", "ours")
    kit.user.late = kit.function
    assert site.undo() == []
    assert kit.user.late is original and kit.user.f is original


def test_a_copy_that_was_changed_since_is_reported(kit: Any) -> None:
    site = Site("p")
    site.wrap(kit, "function", adds("ours"))
    kit.user.f = len
    (problem,) = site.undo()
    assert "user_for_tests.f no longer holds ddpfix's patch" in problem and kit.user.f is len


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=str)
@pytest.mark.parametrize("searched", [False, True])
def test_copies_under_two_patches(kit: Any, order: Any, searched: bool) -> None:
    original = kit.function
    sites = [Site("p0"), Site("p1")]
    with one_search() if searched else contextlib.nullcontext():
        sites[0].wrap(kit, "function", adds("a"))
        sites[1].wrap_hot(kit, "function", closure("b"))
        assert (kit.user.f is original) is searched
    assert kit.user.f() == kit.function() == ["b", "a", "function", 0]
    for number in order:
        assert sites[number].undo() == []
    assert kit.user.f is original and kit.function is original


def test_a_patch_that_is_undone_within_a_search_leaves_copies_alone(kit: Any) -> None:
    original, site = kit.function, Site("p")
    with one_search():
        site.wrap(kit, "function", adds("ours"))
        assert site.undo() == []
    assert kit.user.f is original and kit.function is original


def test_a_copy_is_patched_on_top_of_its_home_within_a_search(kit: Any) -> None:
    original = kit.function
    sites = [Site("p0"), Site("p1")]
    with one_search():
        sites[0].wrap(kit, "function", adds("a"))
        sites[1].wrap(kit.user, "f", adds("b"))
    # As without the search: a copy of a copy is one of the home's too.
    assert kit.user.f() == kit.function() == ["b", "a", "function", 0]
    assert sites[1].undo() == sites[0].undo() == []
    assert kit.user.f is original and kit.function is original


def test_the_same_replacement_under_a_second_name_ends(kit: Any) -> None:
    """A bound method has no home, so a patch replaces every name of it; the search had reached the second name."""
    original, site = kit.function, Site("p")

    def now() -> None:
        """Stands for the bound layer."""

    with one_search():
        site.replace(kit, "function", now)
        site.replace(kit.user, "f", now)
    assert kit.user.f is kit.function is now and len(site.records) == 2
    assert site.undo() == [] and kit.user.f is kit.function is original


def test_a_replacement_taken_back_by_another_patch_within_a_search_ends(kit: Any) -> None:
    original = kit.function
    sites = [Site("p0"), Site("p1")]
    with one_search():
        sites[0].wrap(kit, "function", adds("a"))
        sites[1].replace(kit, "function", original)
    assert kit.user.f is kit.function is original
    assert sites[1].undo() == [] and kit.function() == ["a", "function", 0]
    assert sites[0].undo() == [] and kit.user.f is kit.function is original


def test_a_module_with_two_names_is_one_module(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script under multiprocessing is both __main__ and __mp_main__: one change, one record, no problem at undo."""
    script = ModuleType("script")
    script.function = kit.function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "script", script)
    monkeypatch.setitem(sys.modules, "script_again", script)
    original = kit.function
    site = Site("test")
    site.wrap(kit, "function", lambda wrapped, instance, args, kwargs: wrapped(*args, **kwargs))
    assert script.function is kit.function is not original  # type: ignore[attr-defined]
    assert site.undo() == []
    assert script.function is original  # type: ignore[attr-defined]


def test_stale_copies_look_at_dictionaries_only(kit: Any) -> None:
    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise AssertionError("an attribute look-up could import something")

    sys.modules["lazy_for_tests"] = Lazy("lazy_for_tests")
    sys.modules["odd_for_tests"] = None  # type: ignore[assignment]
    try:
        found = [(module.__name__, name) for _, module, name in stale_copies([(kit.function, kit)])]
        assert found == [("user_for_tests", "f")]
    finally:
        del sys.modules["lazy_for_tests"], sys.modules["odd_for_tests"]


# Threads.


def test_threads_lose_no_layer(kit: Any) -> None:
    original, copies = kit.Thing.method, kit.function
    count, interval = 12, sys.getswitchinterval()
    sites = [Site(f"p{number}") for number in range(count)]
    start = threading.Barrier(count)

    def work(number: int) -> None:
        start.wait()
        for owner, attribute in ((kit.Thing, "method"), (kit, "function")):
            put(sites[number], "wrap" if number % 2 else "wrap_hot", owner, attribute, str(number))

    def run(target: Callable[[int], Any]) -> None:
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(target, range(count)))

    sys.setswitchinterval(1e-6)
    try:
        run(work)
        layers = {str(number) for number in range(count)}
        assert set(kit.Thing().method()[:-2]) == layers and len(kit.Thing().method()) == count + 2
        assert set(kit.user.f()[:-2]) == layers
        run(lambda number: sites[number].undo())
    finally:
        sys.setswitchinterval(interval)
    assert kit.Thing.method is original and kit.function is copies and kit.user.f is copies


# Pickling and copying: by name, as functions are.


@kinds
def test_a_patched_function_is_pickled_by_name(kit: Any, kind: str) -> None:
    site = Site("p")
    put(site, kind, kit, "function", "ours")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(kit.function, protocol)) is kit.function
    assert copy.copy(kit.function) is kit.function and copy.deepcopy([kit.function])[0] is kit.function
    dumped = pickle.dumps(kit.function)
    site.undo()
    # What was written while patched is read where nothing is patched.
    assert pickle.loads(dumped) is kit.function and isinstance(kit.function, FunctionType)


@kinds
def test_a_bound_method_of_a_patched_class_is_pickled(kit: Any, kind: str) -> None:
    site = Site("p")
    put(site, kind, kit.Thing, "method", "ours")
    found = pickle.loads(pickle.dumps(kit.Sub().method))
    assert found(5) == ["ours", "original", 5]
    assert pickle.loads(pickle.dumps(kit.Thing.method))(kit.Thing(), 6) == ["ours", "original", 6]
    site.undo()


def test_what_torch_scripts_is_the_function_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch, site = pytest.importorskip("torch"), Site("p")
    (tmp_path / "scripted.py").write_text("def plus(x): return x + 1\ndef doubled(x): return plus(x) * 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module: Any = import_module("scripted")
    site.wrap(module, "doubled", adds("ours"))
    assert torch.jit.script(module.doubled)(torch.ones(1)) == 4
    assert site.undo() == []


# The whole activation, in the process that runs the tests and in one of its own.


@pytest.fixture
def active() -> Iterator[Any]:
    import ddpfix

    assert not ddpfix.report().active
    yield ddpfix
    ddpfix.deactivate()


def layers(function: Any) -> List[Any]:
    found = []
    while function is not None:
        found.append(function)
        function = getattr(function, "__wrapped__", None)
    return found


def test_activations_are_one_and_undo_takes_each_back(active: Any) -> None:
    from torch.nn.parallel import DistributedDataParallel

    original, summaries = dict(vars(DistributedDataParallel)), set()
    for _ in range(3):
        first = active.activate()
        once = dict(vars(DistributedDataParallel))
        assert len(layers(once["__init__"])) == 2 and len(layers(once["forward"])) == 2
        assert layers(once["__init__"])[-1] is original["__init__"] and active.activate() == first
        assert all(vars(DistributedDataParallel)[name] is value for name, value in once.items())
        active.activate(log="warning")
        assert len(layers(vars(DistributedDataParallel)["__init__"])) == 2
        assert active.deactivate() == [] and active.deactivate() == [] and not active.report().active
        assert dict(vars(DistributedDataParallel)) == original
        assert all(vars(DistributedDataParallel)[name] is value for name, value in original.items())
        summaries.add(first.summary())
    assert len(summaries) == 1


def test_threads_activate_once(active: Any) -> None:
    from torch.nn.parallel import DistributedDataParallel

    start = threading.Barrier(6)

    def work(number: int) -> None:
        start.wait()
        active.activate()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert len(layers(vars(DistributedDataParallel)["__init__"])) == 2


def test_patches_of_one_activation_share_what_they_keep() -> None:
    made: Any = SimpleNamespace
    one, other = made(kept=Kept()), made(kept=Kept())
    mine = Site("a", activation=one).keep(SimpleNamespace)
    assert Site("b", activation=one).keep(SimpleNamespace) is mine
    assert Site("a", activation=other).keep(SimpleNamespace) is not mine
    assert Site("a").keep(SimpleNamespace) is not Site("a").keep(SimpleNamespace)
