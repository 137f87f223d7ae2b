"""The modes of DDP that are compared, and ddpfix switched on for one of them."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass
from typing import Any, Dict, Iterator, Optional


@dataclass(frozen=True)
class Mode:
    """One way to train under DDP.

    Attributes:
        settings: arguments of ``ddpfix.activate``; None is torch without ddpfix.
        flag: whether the code itself passes ``find_unused_parameters=True``.
        views: whether the code itself passes ``gradient_as_bucket_view=True``.
        traced: whether a trace is written.
    """

    settings: Optional[Dict[str, Any]]
    flag: bool = False
    views: bool = False
    traced: bool = False


MODES: Dict[str, Mode] = {
    "plain": Mode(None),
    "flag": Mode(None, flag=True),
    "auto": Mode({}),
    "auto, trace": Mode({}, traced=True),
    "find": Mode({"unused": "find"}),
    "find, views": Mode({"unused": "find"}, views=True),
    "late": Mode({"unused": "late"}),
    "late, views": Mode({"unused": "late"}, views=True),
}


@contextlib.contextmanager
def active(name: str, **settings: Any) -> Iterator[Mode]:
    """ddpfix with a mode's settings and more, switched off again at the end; models are wrapped and trained inside."""
    mode = MODES[name]
    if mode.settings is None:
        yield mode
    elif mode.traced and "trace" not in settings:
        with tempfile.TemporaryDirectory(prefix="ddpfix-gpu-") as folder, active(name, trace=folder, **settings):
            yield mode
    else:
        with _switched_on(mode, settings):
            yield mode


@contextlib.contextmanager
def _switched_on(mode: Mode, settings: Dict[str, Any]) -> Iterator[None]:
    import ddpfix

    ddpfix.activate(log="off", **(mode.settings or {}), **settings)
    try:
        yield
    finally:
        failed = [entry.id for entry in ddpfix.report().patches if entry.state == "failed"]
        left = ddpfix.deactivate()
    # A cure that could not be applied would be measured as if it cost nothing.
    assert not failed, f"ddpfix could not apply {failed}"
    # One mode must not find what another one has left behind.
    assert left == [], f"ddpfix.deactivate() could not take back {left}"
