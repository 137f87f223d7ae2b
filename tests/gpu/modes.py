"""The modes of DDP that are compared, and ddpfix switched on for one of them."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, Optional


@dataclass(frozen=True)
class Mode:
    """One way to train under DDP."""

    settings: Optional[Dict[str, Any]]  # of ``ddpfix.activate``; None is torch without ddpfix
    options: Dict[str, bool] = field(default_factory=dict)  # what the code itself passes to DDP
    traced: bool = False  # whether a trace is written


_FLAG, _VIEWS = {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}
MODES: Dict[str, Mode] = {
    "plain": Mode(None),
    "flag": Mode(None, _FLAG),
    "auto": Mode({}),
    "auto, trace": Mode({}, traced=True),
    "find": Mode({"unused": "find"}),
    "find, views": Mode({"unused": "find"}, _VIEWS),
    "late": Mode({"unused": "late"}),
    "late, views": Mode({"unused": "late"}, _VIEWS),
}


@contextlib.contextmanager
def active(name: str, **settings: Any) -> Iterator[Mode]:
    """ddpfix with a mode's settings and more, switched off again at the end; models are wrapped and trained inside."""
    mode = MODES[name]
    if mode.settings is None:
        yield mode
        return
    if mode.traced and "trace" not in settings:
        with tempfile.TemporaryDirectory(prefix="ddpfix-gpu-") as folder, active(name, trace=folder, **settings):
            yield mode
        return
    import ddpfix

    ddpfix.activate(log="off", **mode.settings, **settings)
    try:
        yield mode
    finally:
        failed = [entry.id for entry in ddpfix.report().patches if entry.state == "failed"]
        left = ddpfix.deactivate()
    # A cure that could not be applied would be measured as if it cost nothing.
    assert not failed, f"ddpfix could not apply {failed}"
    # One mode must not find what another one has left behind.
    assert left == [], f"ddpfix.deactivate() could not take back {left}"
