"""The modes of DDP that are compared, and ddpfix switched on for one of them."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, Optional

_ALL_SENT = {"DDPFIX_TORCH_UNSENT": "0"}


@dataclass(frozen=True)
class Mode:
    """One way to train under DDP.

    Attributes:
        settings: arguments of ``ddpfix.activate``; None is torch without ddpfix.
        flag: whether the code itself passes ``find_unused_parameters=True``.
        environ: environment variables while ddpfix is switched on.
    """

    settings: Optional[Dict[str, Any]]
    flag: bool = False
    environ: Dict[str, str] = field(default_factory=dict)


MODES: Dict[str, Mode] = {
    "plain": Mode(None),
    "flag": Mode(None, flag=True),
    "auto": Mode({}),
    "find": Mode({"unused": "find"}),
    "find, all sent": Mode({"unused": "find"}, environ=_ALL_SENT),
    "find, views": Mode({"unused": "find", "bucket_view": "1"}),
    "late": Mode({"unused": "late"}),
    "late, all sent": Mode({"unused": "late"}, environ=_ALL_SENT),
    "late, views": Mode({"unused": "late", "bucket_view": "1"}),
}


@contextlib.contextmanager
def active(name: str) -> Iterator[Mode]:
    """ddpfix with a mode's settings, switched off again at the end; models are to be wrapped and trained inside."""
    mode = MODES[name]
    if mode.settings is None:
        yield mode
        return
    import ddpfix

    with _environment(mode.environ):
        ddpfix.activate(log="off", advice="off", **mode.settings)
    try:
        yield mode
    finally:
        failed = [entry.id for entry in ddpfix.report().patches if entry.state == "failed"]
        left = ddpfix.deactivate()
    # A cure that could not be applied would be measured as if it cost nothing.
    assert not failed, f"ddpfix could not apply {failed}"
    # One mode must not find what another one has left behind.
    assert left == [], f"ddpfix.deactivate() could not take back {left}"


@contextlib.contextmanager
def _environment(more: Dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
