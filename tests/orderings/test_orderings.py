"""Imports, activation, undo and a second patcher in every order that makes sense, each in a process of its own.

The steps: T import torch, W import a transformers model, A activate(), O import ddpfix.auto, E DDPFIX=1 in the
environment, G the program does what the patches are for, U undo, R activate again, P a second patcher wraps, Q it
unwraps naively, S somebody copies a function.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import permutations
from pathlib import Path
from typing import Dict, List

import pytest

from ddpfix.matrix import detect, loader
from tests.support import ranks


def orders(steps: str, *rules: str) -> List[str]:
    """Permutations in which the letters of each rule stand in the rule's order."""
    found = ("".join(order) for order in permutations(steps))
    return [o for o in found if all(o.index(a) < o.index(b) for rule in rules for a, b in zip(rule, rule[1:]))]


ORDERINGS = dict.fromkeys(
    [
        *orders("ATWUR", "AUR", "TW"),
        *orders("OTWU", "OU", "TW"),
        *orders("ETWU", "ET", "EU", "TW"),
        *orders("AWU", "AU"),
        *orders("ATURPQ", "AUR", "TPQ"),
        *orders("ATURS", "AUR", "TS"),
        *orders("OTUPS", "OU", "TP", "TS"),
        *orders("ETUPQ", "ET", "EU", "TPQ"),
        # The model right after torch, then everything.
        *(order.replace("T", "TW") for order in orders("ATUPS", "AU", "TP", "TS")),
        *orders("ATGUR", "AUR", "TG"),
        *(f"TW{order}G" for order in orders("AGUR", "AUR")),
        *orders("OTGUPQ", "OGU", "TG", "TPQ"),
        *orders("ETWGUS", "EGU", "TW", "TGS"),
        *orders("ATGUPS", "AGU", "TP", "TGS"),
    ]
)


@pytest.fixture(scope="module")
def steps_made() -> Dict[str, List[str]]:
    """What went wrong after each step, by the path that led to it."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).with_name("tree.py"))],
        input="\n".join(" ".join(order) for order in ORDERINGS),
        env=ranks.environment({"PYTHONPATH": str(ranks.ROOT)}),
        stdout=subprocess.PIPE,
        text=True,
        timeout=900,
        check=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    processes = {line["path"]: line["pid"] for line in lines}
    assert len(processes) == len(lines) > 200
    # Numbers of processes come again in a long run, but never while the earlier steps' processes wait.
    assert all(processes.get(path.rpartition(" ")[0]) != number for path, number in processes.items())
    return {line["path"]: line["problems"] for line in lines}


def test_there_are_enough() -> None:
    assert len(ORDERINGS) >= 60
    assert {letter for order in ORDERINGS for letter in order} == set("TWAOEGURPQS")


@pytest.mark.sampled(inside=False)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the orderings are forked")
@pytest.mark.skipif(
    detect.installed_versions(loader.load())["transformers"] is None, reason="transformers is not installed"
)
@pytest.mark.parametrize("order", ORDERINGS)
def test_the_state_is_right_after_every_step(order: str, steps_made: Dict[str, List[str]]) -> None:
    paths = [" ".join(order[: length + 1]) for length in range(len(order))]
    assert {path: steps_made.get(path, ["this step was not made"]) for path in paths} == {path: [] for path in paths}
