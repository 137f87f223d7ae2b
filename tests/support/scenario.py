"""The base of all scenarios: a name, and a plan that is sent to the ranks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import pytest


@dataclass
class Scenario:
    """One run on ranks; a subclass says what is run, and has a ``timeout`` as well."""

    name: str

    def plan(self, folder: Path) -> Dict[str, Any]:
        """The request to the ranks, as far as JSON can hold it."""
        return asdict(self)


def sides(
    train: Callable[..., Any],
    plans: Callable[[Path, bool], List[Any]],
    names: Tuple[str, str] = ("unpatched", "patched"),
) -> Tuple[Any, Any]:
    """The fixtures of a module of tests: its scenarios, which are written in a folder, without ddpfix and with it."""

    def side(name: str, ddpfix: bool) -> Any:
        @pytest.fixture(scope="module", name=name)
        def runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
            where = tmp_path_factory.mktemp(name)
            return train(plans(where, ddpfix), where, ddpfix=ddpfix)

        return runs

    return side(names[0], False), side(names[1], True)
