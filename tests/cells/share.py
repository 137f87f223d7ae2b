"""The cells that CI runs after the README's command, each with the tests where its fixes do most.

Of every toolkit an early and a late release, and some between; all cells, whole, take hours (``nox -s cells``).
"""

from __future__ import annotations

from typing import Dict, Tuple

SHARE: Dict[str, Tuple[str, ...]] = {
    "transformers-4.36.2": ("layerdrop/test_families", "layerdrop/test_outputs"),
    "transformers-4.57.6": ("layerdrop/test_recompute", "sharded/test_sharded"),
    "funasr-1.0.0": ("overrides", "undo"),
    "funasr-1.0.5": ("precision",),
    "funasr-1.0.17": ("batches", "uneven"),
    "funasr-1.0.19": ("entries", "unused"),
    "funasr-1.1.16": ("accumulation", "overrides"),
    "funasr-1.4.16": ("checkpoint", "layerdrop", "probe", "undo", "uneven", "unused"),
    "speechbrain-0.5.11": ("options", "stages", "undo"),
    "speechbrain-0.5.13": ("accumulation",),
    "speechbrain-0.5.16": ("accumulation", "options", "options_yaml", "options_device"),
    "speechbrain-1.0.3": ("layerdrop", "undo", "uneven", "unused"),
    "speechbrain-1.1.2-transformers5": ("options", "probe", "unused"),
    "torchaudio-2.11.0": ("layerdrop",),
    "s3prl-0.4.18": ("layerdrop",),
    "fastNLP-0.7.0": ("unused",),
    "fastNLP-1.0.1": ("children", "layerdrop", "overrides", "undo", "unused"),
}


def files(name: str) -> Tuple[str, ...]:
    """The files of tests that CI runs in this cell."""
    toolkit = name.partition("-")[0].lower()
    words = (word if "/" in word else f"{toolkit}/test_{word}" for word in SHARE[name])
    return tuple(f"tests/{word}.py" for word in words)
