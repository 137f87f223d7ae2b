"""Python's own tools see what ddpfix has replaced in torch and transformers as they see plain torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Dict

from tests.activation.support import ROOT, start
from tests.support.ranks import environment

CHILD = Path(__file__).with_name("introspected.py")
Seen = Dict[str, Dict[str, str]]


def looked(ddpfix: str, *words: str) -> Seen:
    environ = environment({"DDPFIX": ddpfix, "PYTHONPATH": str(ROOT)})
    done = start([sys.executable, CHILD, *words], environ, timeout=300)
    assert done.returncode == 0, done.stderr
    found: Seen = json.loads(done.stdout.splitlines()[-1])
    return found


def test_what_is_replaced_looks_as_in_plain_torch(tmp_path: Path) -> None:
    patched = looked("1")
    assert "torch.nn.parallel.distributed:DistributedDataParallel.forward" in patched and len(patched) > 15
    places = tmp_path / "places"
    places.write_text("\n".join(patched), encoding="utf-8")
    plain = looked("0", str(places))
    differences = [
        f"{place} {look}: {patched[place][look]} for {text}"
        for place, looks in plain.items()
        for look, text in looks.items()
        if patched[place][look] != text
    ]
    assert not differences, "\n".join(differences)
