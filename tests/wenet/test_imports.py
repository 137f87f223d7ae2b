"""What newer torch and torchaudio broke at import: WeNet fails, the missing name is supplied, and taken back again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List

import pytest

from tests.wenet import trees
from tests.wenet.test_versions import ran

CODE = """
import importlib, sys
import torch.nn.modules.conv as conv
try:
    import torchaudio.utils as audio
except ImportError:
    audio = None
def state():
    return [hasattr(conv, "Union"), hasattr(conv, "Optional"), hasattr(audio, "sox_utils")]
for name in {before!r}:
    importlib.import_module(name)
before = state()
importlib.import_module({name!r})
import ddpfix
if ddpfix.report().active:
    within = state()
    from ddpfix import engine
    print(before, within, engine.deactivate(), state(), state() == before)
"""
CONV = "squeezeformer.conv2d"
TORCH = "cannot import name"
SOX = "module 'torchaudio.utils' has no attribute 'sox_utils'"


def conv2d(tree: Path) -> str:
    return f"wenet.models.{CONV}" if trees.version(tree) == "3.2.0.dev0" else f"wenet.{CONV}"


def processor(tree: Path) -> str:
    return f"wenet.dataset{'.deprecated' if trees.version(tree) == '3.2.0.dev0' else ''}.processor"


def missing(module: str, name: str) -> bool:
    imported: Any = pytest.importorskip(module)
    return not hasattr(imported, name)


def output_of(name: str, tree: Path, before: List[str], **environ: str) -> Any:
    return ran(["-W", "ignore", "-c", CODE.format(name=name, before=before)], tree, **environ)  # type: ignore[arg-type]


@pytest.mark.patches("wenet.imports")
@pytest.mark.parametrize("tree", trees.every(("v2", "v3"), trees.since("v2.1.0")))
def test_names_of_typing(tree: Path) -> None:
    if not missing("torch.nn.modules.conv", "Union"):
        pytest.skip("this torch still has them")
    unpatched = output_of(conv2d(tree), tree, [])
    assert unpatched.returncode == 1 and f"ImportError: {TORCH} '" in unpatched.stderr
    assert "from 'torch.nn.modules.conv'" in unpatched.stderr
    done = output_of(conv2d(tree), tree, ["torch"], DDPFIX="1")
    assert done.returncode == 0, done.stderr
    first, within = done.stdout.splitlines()[-1].split("] ")[:2]
    assert first.startswith("[False, False,") and within.startswith("[True, True,")
    assert done.stdout.splitlines()[-1].endswith("True"), done.stdout


@pytest.mark.patches("wenet.imports")
@pytest.mark.parametrize("tree", trees.every(("v2", "v3"), trees.since("v2.2.1")))
def test_the_buffer_of_sox(tree: Path) -> None:
    if not missing("torchaudio.utils", "sox_utils"):
        pytest.skip("this torchaudio still has it")
    names = {"DDPFIX": "1", "DDPFIX_WENET_IMPORTS": "0"}
    unpatched = output_of(processor(tree), tree, [], **names)
    # On main, import wenet itself fails first.
    error = f"ImportError: {TORCH}" if tree.name == "main" else f"AttributeError: {SOX}"
    assert unpatched.returncode == 1 and error in unpatched.stderr
    done = output_of(processor(tree), tree, ["torch"], DDPFIX="1")
    assert done.returncode == 0, done.stderr
    assert ", True] [] [" in done.stdout.splitlines()[-1] and done.stdout.splitlines()[-1].endswith("True")
