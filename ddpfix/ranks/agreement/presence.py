"""Marks in the store: ddpfix is active on this rank, and this rank has ended with an error."""

from __future__ import annotations

import contextlib
import sys

from ddpfix.ranks.store.keys import default_store, enter, group_store, keys

# Ranks that have ended with an error: how many, and each under its number.
ENDED, ANY = "ended", "any"


def announce() -> None:
    """Leave a mark in the store that ddpfix is active on this rank; called when the process group has been initialized.

    Other ranks wait for a late rank that has left its mark, but not for one without a mark or one that ended with an
    error. In a store of the program's own there is no mark.
    """
    store = group_store()
    if store is not None:
        enter(store)


def announce_end() -> None:
    """Tell the ranks that may be waiting for this one that it ends with an error; nothing where it ends without."""
    if getattr(sys, "last_value", None) is None:
        return
    # The process that holds the store may have ended already, and then nobody can be told.
    with contextlib.suppress(Exception):
        from torch import distributed

        store = default_store()
        if store is not None:
            store = keys(store, ENDED)
            store.add(str(distributed.get_rank()), 1)
            store.add(ANY, 1)
