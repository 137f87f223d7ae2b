"""How much of its gradients a model is expected not to send, which decides whether a communication hook pays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ddpfix.patches.torch import unsent

from tests.benchmarks.mode_child import Encoder

LAYER = 12 * 64 * 64 * 4


def wrapper(rate: float, cap: float) -> Any:
    """As much of a model under DDP as is looked at; ``cap`` in sizes of a layer."""
    return SimpleNamespace(module=Encoder(rate, 64, 12), bucket_bytes_cap=int(cap * LAYER))


@pytest.mark.parametrize(
    ("rate", "cap", "least", "most"),
    [
        (0.5, 1.0, 0.45, 0.5),
        # A layer that DDP would cut has buckets of its own, too.
        (0.1, 0.3, 0.09, 0.1),
        # Four layers share one, and are saved if they are skipped together.
        (0.5, 7.9, 0.05, 0.0625),
        (0.1, 7.9, 0.0, 0.0001),
    ],
)
def test_expected_share(rate: float, cap: float, least: float, most: float) -> None:
    share = unsent.expected(wrapper(rate, cap))
    assert least <= share <= most
    assert (share >= unsent.WORTH["cpu"]) == (cap <= 1.0)
