"""What Python's tools see of functions of torch and transformers, as JSON on stdout.

Without words it activates ddpfix (DDPFIX=1), builds a model under DDP and looks at all that was replaced; with a file
of places (``module:attribute``, one a line) it looks at these.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import pickle
import re
import sys
import typing
from pathlib import Path
from typing import Any, Callable, Dict, List
from unittest import mock

import torch
import transformers
from torch import distributed


def main(places: List[str]) -> None:
    # transformers gives some of them another text when it imports a model.
    _ = transformers.PreTrainedModel, transformers.Trainer, transformers.Wav2Vec2Model, transformers.BartModel
    if not places:
        places = _replaced()
    print(json.dumps({place: _seen(place) for place in places}))


def _replaced() -> List[str]:
    """The places of all changes, with the gate shut and open."""
    from ddpfix import engine
    from ddpfix.patching.layers import CHANGES

    current = engine.current()
    assert current is not None
    early = {record.place for record in CHANGES.in_place if not record.copy}
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    return sorted(early | {record.place for record in CHANGES.in_place if not record.copy})


def _seen(place: str) -> Dict[str, str]:
    module, _, path = place.partition(":")
    *above, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for part in above:
        owner = getattr(owner, part)
    found = getattr(owner, name)
    looks: Dict[str, Callable[[], object]] = {
        "signature": lambda: inspect.signature(found),
        "arguments": lambda: inspect.getfullargspec(found),
        "hints": lambda: sorted(map(str, typing.get_type_hints(found).items())),
        "source": lambda: inspect.getsource(found),
        "line": lambda: inspect.getsourcelines(found)[1],
        "autospec": lambda: inspect.signature(mock.create_autospec(found)),
        "kinds": lambda: [inspect.isfunction(found), inspect.ismethod(found), inspect.isroutine(found)],
        "names": lambda: [found.__name__, found.__qualname__, found.__module__, found.__doc__],
        "annotations": lambda: sorted(map(str, found.__annotations__.items())),
        "pickle": lambda: [b"ddpfix" in pickle.dumps(found), pickle.loads(pickle.dumps(found)) == found],
    }
    if isinstance(owner, type):
        looks["autospec of the class"] = lambda: inspect.signature(getattr(mock.create_autospec(owner), name))
        looks["kind in the class"] = lambda: inspect.getattr_static(owner, name).__class__
    # CheckpointFunction inherits its apply from a class of torch's own.
    return {look: _short(see) for look, see in looks.items() if path != "CheckpointFunction.apply"}


def _short(see: Callable[[], object]) -> str:
    try:
        text = str(see())
    except Exception as error:
        text = type(error).__name__
    # Objects show where they are.
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    return text if len(text) < 400 else hashlib.sha1(text.encode()).hexdigest()


if __name__ == "__main__":
    main([] if len(sys.argv) < 2 else Path(sys.argv[1]).read_text(encoding="utf-8").split())
