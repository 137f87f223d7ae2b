"""The setting ``uneven`` has values that not every toolkit has."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest

from ddpfix import log
from ddpfix.matrix import settings
from ddpfix.patching.site import Site
from ddpfix.ranks.uneven import policy


@pytest.mark.parametrize(
    "asked, taken, said",
    [({}, "join", False), ({"uneven": "pad"}, "join", True), ({"uneven": "join"}, "join", False)]
    + [({"uneven": "stop"}, "stop", False)],
)
def test_the_nearest_value_is_taken_and_said(
    monkeypatch: pytest.MonkeyPatch, asked: Dict[str, Any], taken: str, said: bool
) -> None:
    lines: List[str] = []
    monkeypatch.setattr(log, "info", lines.append)
    site = Site("wenet.uneven", settings.read(asked, [], environ={}))
    assert policy(site, "WeNet", {"pad": "join"}) == taken
    assert lines == (["WeNet has no uneven=pad: it does the nearest to it, uneven=join"] if said else [])
