"""Where a program is, as a hang would tell it, printed in each forward of a model of the program's."""

from __future__ import annotations

import functools
import json
from typing import Any, Dict, List

_MARK = "AT "


def tell(training: bool) -> None:
    """Print where the program is."""
    from ddpfix.ranks.hang.position import Tracker

    at = Tracker(0, lambda: None).position()
    found = {"training": training, "epoch": at.epoch, "counter": at.counter, "batch": at.batch}
    print(f"\n{_MARK}{json.dumps(found)}", flush=True)


def follow(kind: Any) -> None:
    """Do so in each forward of a class of modules."""
    forward = kind.forward

    @functools.wraps(forward)
    def telling(self: Any, *args: Any, **kwargs: Any) -> Any:
        tell(self.training)
        return forward(self, *args, **kwargs)

    kind.forward = telling


def told(text: str, training: bool = True) -> List[Dict[str, Any]]:
    """What has been printed, of training forwards or of others."""
    lines = [json.loads(line[len(_MARK) :]) for line in text.splitlines() if line.startswith(_MARK)]
    return [line for line in lines if line["training"] is training]


def counts(found: List[Dict[str, Any]]) -> List[int]:
    """The numbers of the program's own counter."""
    return [int(line["counter"].split()[-1]) for line in found]
