"""``freeze_param`` freezes what it names, in every spelling that FunASR's releases and recipes have used.

``encoder``, ``'encoder,decoder'``, ``'encoder, decoder'``, ``[encoder,decoder]`` and ``"'encoder','decoder'"`` end, by
release, in a NameError, in a TypeError, or in a model of which nothing is frozen.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
from types import ModuleType
from typing import Any, Dict, Iterator, List

from ddpfix import log
from ddpfix.patching import temporary
from ddpfix.patching.site import Site

from . import entry
from .config import plain

KEY = "freeze_param"


def spell(site: Site, module: ModuleType, owner: Any) -> None:
    """Register for the entry's ``main``."""
    entry.before_main(site, settle)
    entry.around_main(site, lambda run: _looked_at(site, run))


def settle(run: entry.Run) -> None:
    """Rewrite the value to a form that this release's own code reads rightly."""
    names = named(run.kwargs.get(KEY))
    if names:
        run.kwargs[KEY] = _form(run, names)
    elif KEY in run.kwargs:
        run.kwargs[KEY] = None


def named(value: Any) -> List[str]:
    """Return the names in any spelling."""
    value = plain(value)
    if value is None or value is False:
        return []
    parts = value if isinstance(value, (list, tuple, set)) else [value]
    texts = [text for part in parts for text in str(part).split(",")]
    return [name for name in (text.strip(" \t\n'\"[](){}") for text in texts) if name]


def _form(run: entry.Run, names: List[str]) -> Any:
    code = getattr(inspect.unwrap(run.namespace["main"]), "__code__", None)
    if code is not None and "Sequence" in code.co_names:
        # Up to 1.0.25 the text is evaluated, and a sequence is taken for one name: a set is neither text nor sequence.
        return "{" + "".join(f"{name!r}, " for name in names) + "}"
    return names


@contextlib.contextmanager
def _looked_at(parent: Site, run: entry.Run) -> Iterator[None]:
    """Inspect the model when the trainer first gets it: frozen by then, and not yet trained."""
    names = named(run.kwargs.get(KEY))
    trainer = run.namespace["Trainer"]
    if not names:
        yield
        return

    def given(wrapped: Any, instance: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
        model = kwargs.get("model")
        if model is not None:
            check(getattr(model, "module", model), names)
        return wrapped(*args, **kwargs)

    with temporary.patched(parent) as site:
        site.wrap(trainer, "resume_checkpoint" if hasattr(trainer, "train_epoch") else "__init__", given)
        yield


def check(model: Any, names: List[str]) -> None:
    """Say how much is frozen.

    Raises:
        ValueError: a name is that of no parameter, or its parameters still train.
    """
    there = dict(model.named_parameters())
    for name in names:
        matching = [p for key, p in there.items() if key == name or key.startswith(name + ".")]
        if not matching:
            raise ValueError(f"freeze_param: there is no parameter {name} or {name}.*{_instead(name, there)}")
        if any(p.requires_grad for p in matching):
            raise ValueError(f"freeze_param: {name!r} was not frozen by this entry")
    frozen = sum(not p.requires_grad for p in there.values())
    log.info(f"freeze_param: {frozen} of {len(there)} parameters do not train ({', '.join(names)})")


def _instead(name: str, there: Dict[str, Any]) -> str:
    prefixes = {".".join(key.split(".")[: depth + 1]) for key in there for depth in range(key.count(".") + 1)}
    close = difflib.get_close_matches(name, sorted(prefixes), n=3)
    top = sorted({key.split(".")[0] for key in there})
    return (f"; did you mean {' or '.join(close)}?" if close else "") + f" This model has {', '.join(top)}"
