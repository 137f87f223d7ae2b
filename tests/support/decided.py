"""The decisions that ddpfix takes about layers, for a reference that takes the same ones by hand."""

from __future__ import annotations

from typing import Any, Callable, List


def decided(taken: List[bool], patch: Callable[[Any, str, Any], Any] = setattr) -> List[bool]:
    """Add each decision from here on to a list, in order: whether a layer, or a branch of one, is skipped."""
    from ddpfix.layerdrop.shared_skips import Call

    decide = Call.decide

    def noting(self: Call, comparison: Any, truth: Any, rate: Any, layers: Any) -> Any:
        result = decide(self, comparison, truth, rate, layers)
        taken.append(bool(result) == comparison.skip)
        return result

    patch(Call, "decide", noting)
    return taken
