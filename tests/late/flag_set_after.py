"""Accumulation by hand, in a file that sets DDP's attribute once: after the forward, which reads it, or before it."""

from __future__ import annotations

from typing import Any, Dict

from tests.late.parting import STEPS, batch, note, sgd, wrapped


def run(record: Dict[str, Any], before: bool = False) -> None:
    model = wrapped()
    optimizer = sgd(model)

    def flag(number: int) -> None:
        model.require_backward_grad_sync = number % 2 == 1

    for number in range(2 * STEPS):
        if before:
            flag(number)
        value = model(batch(number)).pow(2).mean()
        if not before:
            flag(number)
        value.backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
            note(record, model)
