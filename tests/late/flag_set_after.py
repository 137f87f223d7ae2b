"""Accumulation by hand, in a file that sets DDP's attribute once: after the forward, which reads it."""

from __future__ import annotations

from typing import Any, Dict

from tests.late.parting import STEPS, batch, note, sgd, wrapped


def run(record: Dict[str, Any]) -> None:
    model = wrapped()
    optimizer = sgd(model)
    for step in range(STEPS):
        for micro in range(2):
            value = model(batch(2 * step + micro)).pow(2).mean()
            model.require_backward_grad_sync = micro == 1
            value.backward()
        optimizer.step()
        optimizer.zero_grad()
        note(record, model)
