"""The setting ``uneven`` has values that not every toolkit has."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest

from ddpfix import log
from ddpfix.matrix import loader, settings
from ddpfix.patching.site import Site
from ddpfix.uneven.loader import policy


@pytest.mark.parametrize(
    "requested, taken, is_logged",
    [({}, "join", False), ({"uneven": "pad"}, "join", True), ({"uneven": "join"}, "join", False)]
    + [({"uneven": "stop"}, "stop", False)],
)
def test_the_nearest_value_is_taken_and_logged(
    monkeypatch: pytest.MonkeyPatch, requested: Dict[str, Any], taken: str, is_logged: bool
) -> None:
    lines: List[str] = []
    monkeypatch.setattr(log, "info", lines.append)
    site = Site("wenet.uneven", settings.read(requested, [], environ={}), instead={"auto": "join", "pad": "join"})
    assert policy(site, "WeNet") == taken
    assert lines == (["WeNet does not support uneven=pad: ddpfix uses uneven=join"] if is_logged else [])


def test_the_matrix_says_which_values_a_toolkit_does_not_have() -> None:
    """Each value of the setting is a toolkit's own, or stands for one that is; off is never replaced."""
    patches = [patch for patch in loader.load().patches.values() if patch.setting == "uneven"]
    assert {patch.id: dict(patch.instead) for patch in patches} == {
        "funasr.uneven": {"auto": "pad", "join": "pad"},
        "speechbrain.uneven": {"auto": "pad", "join": "pad"},
        "torch.uneven": {"join": "pad"},
        "wenet.uneven": {"auto": "join", "pad": "join"},
    }
    (setting,) = [setting for setting in settings.SETTINGS if setting.name == "uneven"]
    # Loops of a user's own are touched only where that was asked for.
    unasked = {patch.id for patch in patches if "auto" not in patch.when}
    assert unasked == {"torch.uneven"}
    assert all({*patch.when, "auto"} == set(setting.values) - {"off"} for patch in patches)
