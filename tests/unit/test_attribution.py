"""Warnings count no function of ddpfix that stands between the program and torch (programs: tests/harm, frames)."""

from __future__ import annotations

import functools
import warnings
from typing import Any, Dict

from ddpfix import user_code
from ddpfix.patching import attribution


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
