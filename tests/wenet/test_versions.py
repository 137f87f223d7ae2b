"""Every tree is recognised by what it looks like, whatever metadata is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest

from ddpfix.matrix import detect, loader
from tests.wenet import trees

TREES = trees.every(tuple(trees.LIKE), tuple(trees.VERSIONS), sample=False)


def ran(words: List[str], tree: Path, more_path: Path = Path(os.devnull), **environ: str) -> Any:
    whole = trees.environ(tree, **environ)
    whole["PYTHONPATH"] = os.pathsep.join([whole["PYTHONPATH"], str(more_path)])
    return subprocess.run([sys.executable, *words], env=whole, capture_output=True, text=True)


def plan(tree: Path, more_path: Path = Path(os.devnull)) -> Dict[str, Any]:
    done = ran(["-m", "ddpfix", "plan", "--json"], tree, more_path)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("tree", TREES)
def test_the_plan_knows_the_version_and_every_patch(tree: Path, tmp_path: Path) -> None:
    metadata = tmp_path / "wenet-0.0.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: wenet\nVersion: 0.0.0\n")
    report = plan(tree, tmp_path)
    assert report["toolkits"]["wenet"] == trees.version(tree)
    decided = {entry["id"]: entry["action"] for entry in report["patches"] if entry["toolkit"] == "wenet"}
    assert set(decided) == {name for name, p in loader.load().patches.items() if p.toolkit == "wenet"}
    assert set(decided.values()) <= {"apply", "not-affected", "not-cured", "off"}
    assert decided["wenet.torchaudio"] == "not-cured"


@pytest.mark.parametrize("tree", TREES)
def test_recognition_is_cheap(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads one file, and asks for few more."""
    monkeypatch.syspath_prepend(str(tree))
    read: List[Path] = []
    original = Path.read_text

    def noting(self: Path, *args: Any, **kwargs: Any) -> str:
        read.append(self)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", noting)
    assert detect.recognise("wenet", loader.load().marks["wenet"]) == trees.version(tree)
    assert {path.name for path in read} == {"executor.py"} and len(read) == 1
    assert "wenet" not in sys.modules
