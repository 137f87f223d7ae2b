"""What a program does not see: threads of ddpfix, its functions in warnings, and a second copy of it."""

from __future__ import annotations

import functools
import logging
import sys
import threading
import warnings
from typing import Any, Dict

import pytest

from ddpfix import _switch, engine, import_hook, log, unlisted_thread, user_code
from ddpfix.patching import attribution


def test_a_thread_of_ours_is_not_listed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor by what it logs: a record of logging asks for the current thread, which threading then lists."""
    logger = logging.Logger("ddpfix")
    logger.addHandler(logging.StreamHandler(sys.stderr))
    monkeypatch.setattr(log, "_logger", lambda: logger)
    before, during = threading.enumerate(), []

    def run() -> None:
        log.error("a line")
        during.extend(threading.enumerate())

    ours = unlisted_thread.Background(run)
    ours.join(20)
    assert during == before == threading.enumerate() and not ours.is_alive()
    assert capsys.readouterr().err == "a line\n" and not log.NOTED.unlisted


def test_a_second_copy_does_nothing_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Finder:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            """What the finder of the first copy is called: its class has the same name in the same module."""

    Finder.__module__, Finder.__qualname__ = import_hook.Finder.__module__, import_hook.Finder.__qualname__
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    monkeypatch.setattr(_switch, "_reported", [])
    monkeypatch.setattr(engine, "_engine", None)
    before = list(sys.meta_path)
    for _ in range(2):
        engine.switch_on()
    assert engine.current() is None and sys.meta_path == before
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and "this copy is not used" in lines[0] and __file__.rpartition("/")[0] in lines[0]


def test_one_copy_is_no_other() -> None:
    assert import_hook.of_another_copy() is None


# Warnings count no function of ddpfix that stands between the program and torch (programs: tests/harm, frames).


def warns(value: int, *, stacklevel: int) -> int:
    warnings.warn("old", stacklevel=stacklevel)
    return value


def test_a_function_of_ours_is_not_counted() -> None:
    code = compile(
        "def between(*args, **how):\n    return called(*args, **how)\n", user_code.OWN[-1] + "stage.py", "exec"
    )
    space: Dict[str, Any] = {"called": warns}
    exec(code, space)
    between: Any = space["between"]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        between(3, stacklevel=2)
        assert attribution.uncounted(functools.partial(between, 3))(stacklevel=2) == 3
    assert [each.filename for each in found] == [user_code.OWN[-1] + "stage.py", __file__]
    assert between.__code__.co_filename.startswith(user_code.OWN[-1])
    assert attribution.uncounted(between).__code__ is between.__code__


def test_a_function_of_the_programs_own_stays_as_it_is() -> None:
    code = warns.__code__
    assert attribution.uncounted(warns).__code__ is code
