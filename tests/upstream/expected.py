"""Tests of upstream that expect the very error that ddpfix cures: by name, with what they say then, and the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Tuple


@dataclass(frozen=True)
class Expected:
    """A test that fails under ddpfix because torch's error does not come, or says more.

    Attributes:
        says: one of these has to stand in its failure; with another one it counts as any test.
        reason: what it expects, in words.
    """

    says: Tuple[str, ...]
    reason: str


_NONE = "it expects torch's error about unused parameters, and there is none: the reduction is finalized"
_LONGER = (
    "it expects torch's error where the user said find_unused_parameters=False: late has none, and auto, which"
    " respects the False, adds its diagnosis to the message that DDP has logged"
)
_LOGGED = "in ddp logging data error"

EXPECTED: Dict[str, Expected] = {
    "test_ddp_unused_params_rebuild_buckets_exception": Expected(("unused parameters error not raised",), _NONE),
    "test_ddp_multiple_nested_unused_params_error": Expected(("Expected error was not raised",), _NONE),
    "test_ddp_multiple_nested_unused_params_err_ignore_params": Expected(("Expected error was not raised",), _NONE),
    "test_ddp_control_flow_different_across_ranks": Expected(("DDP error not raised", _LOGGED), _LONGER),
    "test_ddp_control_flow_same_across_ranks": Expected(("DDP error not raised", _LOGGED), _LONGER),
}
