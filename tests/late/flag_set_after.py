"""Accumulation by hand, in a file that sets DDP's attribute once: after the forward, which reads it, or before it."""

from __future__ import annotations

from typing import Any

from tests.late.parting import batch


def backward(model: Any, step: int, before: bool = False) -> None:
    def flag() -> None:
        model.require_backward_grad_sync = averaged

    for averaged in (False, True):
        if before:
            flag()
        value = model(batch(2 * step + averaged)).pow(2).mean()
        if not before:
            flag()
        value.backward()
