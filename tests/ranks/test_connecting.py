"""Ranks that gloo cannot connect do not wait a day for it, and all of them know."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import ranks

SCRIPT = str(Path(__file__).with_name("connecting.py"))


@pytest.mark.parametrize(("connects", "sums"), [("yes", "[1, 2]"), ("late", "[1, 2]"), ("no", "None")])
def test_all_ranks_know_whether_gloo_connects_them(connects: str, sums: str, tmp_path: Path) -> None:
    code, output = ranks.run([*ranks.elastic(2), SCRIPT, connects], ranks.environment({}), tmp_path, 120)
    assert code == 0, output
    for rank in range(2):
        assert f"rank {rank}: {sums} True True" in output, output
    said = [line for line in output.splitlines() if "gloo has not connected these ranks" in line]
    assert len(said) == (connects == "no") and all("GLOO_SOCKET_IFNAME" in line for line in said), output
