"""The measured part of docs/memory.md is replaced, and the rest is left as somebody wrote it."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks import memory


def test_the_measured_part_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "memory.md"
    written = (memory.FOLDER / "memory.md").read_text(encoding="utf-8")
    page.write_text(written, encoding="utf-8")
    memory.put("new\n", page)
    head, tail = written.split(memory.BEGIN)[0], written.split(memory.END)[1]
    assert page.read_text(encoding="utf-8") == f"{head}{memory.BEGIN}\nnew\n{memory.END}{tail}"
    assert head.startswith("# Memory that climbs") and len(head.splitlines()) > 30
