"""``import ddpfix.auto`` switches ddpfix on for this process and for the Python processes that it starts.

It has to stand before the first use of a toolkit, best as the first line of the training script. It may come later
too: what is already imported is patched at once. ``DDPFIX=0`` in the environment wins.
"""

from __future__ import annotations

import os

from ddpfix import _switch

if not _switch.refused():
    from ddpfix import engine

    # Children that are not forked (spawned data loader workers, launched ranks) read the environment.
    if not os.environ.get("DDPFIX", "").strip():
        os.environ["DDPFIX"] = "1"
    engine.switch_on()
