"""What nobody should write: values for properties, and the settings with which they are run."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from ddpfix.cli.main import main

# Small samples: the whole folder has its part of the time of the README's command.
FEW = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)

TRICKS: List[str] = [
    "",
    " ",
    "\0",
    "\ud800",
    "\x1b]0;title\x07\x1b[31m",
    "\x9b31m",
    "\u202e",
    "[red]x[/red]",
    "[/]",
    "[link=https://example.org]x[/link]",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "9" * 5000,
    "-1",
    "0x" + "f" * 40,
    "１２",
    "1_0",
    "../../../etc/passwd",
    "/dev/zero",
    "~nobody-here/x",
    "os:system",
    "common.lines:decide\n",
    "__import__('os')",
    "%s%n{0.__class__}",
    "x" * 100_000,
]
# What commands a terminal; a line break is none.
COMMANDS = {*map(chr, range(32)), *map(chr, range(127, 160)), "\u202e", "\u2066", "\u2028"} - {"\n"}

texts = st.one_of(st.sampled_from(TRICKS), st.text(max_size=30))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**31, 2**63, 2**64, -(2**63), 10**4000]),
    st.floats(allow_nan=True, allow_infinity=True),
    texts,
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=8,
)


# What is no file.
ODD = ("pipe", "device", "folder", "circle")


def put_odd(file: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to("/dev/zero" if kind == "device" else file)


def commands(text: str) -> Dict[str, int]:
    """The characters of a text that command a terminal, with how often."""
    return {repr(each): text.count(each) for each in COMMANDS & set(text)}


def called(words: List[str]) -> Tuple[Optional[int], str, str]:
    """The exit code of a command in this process, and what it printed to stdout and to stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code: Any = main(words)
        except SystemExit as end:
            code = end.code
    return code, out.getvalue(), err.getvalue()


def with_one_changed(whole: Any, change: Any, place: List[int]) -> Any:
    """A nest of lists and dictionaries in which the value on the way of these numbers is another one."""
    if not place or not isinstance(whole, (list, dict)) or not whole:
        return change
    if isinstance(whole, dict):
        name = list(whole)[place[0] % len(whole)]
        return {**whole, name: with_one_changed(whole[name], change, place[1:])}
    at = place[0] % len(whole)
    return [*whole[:at], with_one_changed(whole[at], change, place[1:]), *whole[at + 1 :]]
