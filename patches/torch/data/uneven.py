"""Ranks with different numbers of batches, in a loop of one's own, under accelerate, Trainer and Lightning.

This is done only where it was asked for (``DDPFIX_UNEVEN=pad`` or ``stop``). A program that counts steps, and begins a
loader anew where it ends, trains rightly in plain torch with any numbers of batches; no rank can know whether another
one is such a program, or waits for it.

ddpfix starts to manage a DataLoader iteration at the first batch after a DDP model has trained in it. All ranks then
synchronise once (:mod:`.even_lengths`). If a rank does not arrive within 30 s (an evaluation on one rank, a loader that
only one rank reads), ddpfix gives up for the rest of the run.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from ddpfix.patching.dynamo import skip_frames, skip_module
from ddpfix.patching.site import Site
from ddpfix.uneven import loader

from ..pipeline import step_count
from ..pipeline.step_count import Clocks
from . import even_iterations, even_lengths


def stage(site: Site, module: ModuleType, owner: Any) -> None:
    own, clocks = site.keep(even_iterations.LoaderIterations), site.keep(Clocks)
    own.begin_with(loader.policy(site, "a loop of your own") == "stop", site.keep(loader.Held), clocks)
    clocks.follow(site, owner, "uneven")
    clocks.counts = True
    site.at_undo(own.forget)
    for each in (even_iterations, even_lengths, loader, step_count):
        skip_module(sys.modules[each.__name__])


def first_pass(site: Site, module: ModuleType, owner: Any) -> None:
    """Manage the iteration that begins with an iterator."""
    site.wrap(owner, "__init__", site.keep(even_iterations.LoaderIterations).begin)


def next_pass(site: Site, module: ModuleType, owner: Any) -> None:
    """Manage the iteration that begins when persistent workers begin anew."""
    site.wrap(owner, "_reset", site.keep(even_iterations.LoaderIterations).begin)


def batches(site: Site, module: ModuleType, owner: Any) -> None:
    """Give as many batches as on the other ranks."""
    site.wrap_hot(owner, "__next__", site.keep(even_iterations.LoaderIterations).next_batch)
    skip_frames(vars(owner)["__next__"])
