"""Records the hidden states of skipped layers, so that there is one entry a layer again.

transformers 5 collects hidden states with hooks on the layers, and a layer that is not called leaves no entry:
``use_weighted_layer_sum`` then multiplies lists of different lengths and fails. A skipped layer's output is its input.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Dict, List, Optional, Tuple

from ddpfix.layerdrop.shared_skips import EXTENSIONS, Call, Extension, layer_count
from ddpfix.patching.site import Site

KEY = "hidden_states"


def skipped(site: Site, module: ModuleType, owner: Any) -> None:
    """Complete the collected hidden states when a call that skipped layers ends."""
    site.register(EXTENSIONS, site.keep(_Recording))


def _collected() -> Optional[List[Any]]:
    capturing = sys.modules.get("transformers.utils.output_capturing")
    if capturing is None:
        return None
    collected = capturing._active_collector.get()
    return None if collected is None else collected.get(KEY)


class _Recording(Extension):
    def observes(self, module: Any, kwargs: Dict[str, Any]) -> bool:
        """Return whether hidden states are collected in this call: unpatched transformers fails at a gap, too."""
        requested = kwargs.get(f"output_{KEY}") or getattr(getattr(module, "config", None), f"output_{KEY}", False)
        return bool(requested) or _collected() is not None

    def begins(self, module: Any) -> Optional[Tuple[List[Any], int]]:
        """Return the list being filled and how long it is before the first layer runs."""
        entries = _collected()
        return None if entries is None else (entries, len(entries))

    def ended(self, module: Any, begun: Tuple[List[Any], int], call: Call) -> None:
        entries, before = begun
        count = layer_count(module)
        left_out = {left.layer for left in call.left_out}
        added = entries[before:]
        # The first entry is the input of the first layer that ran, and that is the input of all skipped before it.
        # Where no layer ran, or the toolkit records otherwise, nothing is known to be missing.
        if not left_out or len(added) != count - len(left_out) + 1:
            return
        outputs = iter(added[1:])
        completed = [added[0]]
        for layer in range(count):
            completed.append(completed[-1] if layer in left_out else next(outputs))
        entries[before:] = completed
