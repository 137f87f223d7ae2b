"""The cheapest cure of an error of DDP as a line to paste, for the toolkit that has wrapped the model."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path
from typing import Any, List, Sequence, Tuple

from ddpfix import log

from ...common.lines import Lines

_PLAIN = Lines(
    "DistributedDataParallel",
    (),
    find="DistributedDataParallel(model, find_unused_parameters=True)",
    do_not_find="DistributedDataParallel(model, find_unused_parameters=False)",
    not_static="DistributedDataParallel(model, find_unused_parameters=True, static_graph=False)",
    not_reentrant="torch.utils.checkpoint.checkpoint(function, *inputs, use_reentrant=False)",
    own=True,
)
# Lightning has no folder of its own: nothing in it is patched.
LIGHTNING = Lines(
    "Lightning",
    ("lightning.pytorch.", "pytorch_lightning."),
    find='Trainer(..., strategy="ddp_find_unused_parameters_true")',
    do_not_find='Trainer(..., strategy="ddp")',
    not_static="Trainer(..., strategy=DDPStrategy(find_unused_parameters=True))",
)
_KINDS = ("find", "do_not_find", "not_static", "not_reentrant")
# Frames that are looked at for the one that has wrapped a model.
_FRAMES = 200


def callers() -> Tuple[str, ...]:
    """Return the modules that have led here, the outermost first; a script is named as its path spells it."""
    found: List[str] = []
    frame: Any = sys._getframe(1)
    while frame is not None and len(found) < _FRAMES:
        name = str(frame.f_globals.get("__name__", ""))
        if name == "__main__":
            name = ".".join(Path(frame.f_code.co_filename).with_suffix("").parts[-3:])
        if not found or found[-1] != name:
            found.append(name)
        frame = frame.f_back
    return tuple(reversed(found))


def of(wrapped_by: Sequence[str]) -> Lines:
    """Return the lines of the outermost toolkit that has wrapped a model (:func:`callers`); DDP's where none has."""
    every = _every()
    for module in wrapped_by:
        for lines in every:
            if any(f"{module}.".startswith(caller) for caller in lines.callers):
                return lines._replace(**{name: getattr(lines, name) or getattr(_PLAIN, name) for name in _KINDS})
    return _PLAIN


def is_plain(lines: Lines) -> bool:
    """Return whether these are the lines of DDP itself."""
    return lines.name == _PLAIN.name


def _every() -> List[Lines]:
    """Return the lines of all folders of patches that have some."""
    package = __package__.rpartition(".torch.")[0]
    found = [LIGHTNING]
    for folder in pkgutil.iter_modules(sys.modules[package].__path__):
        try:
            if folder.name not in ("common", "torch"):
                found += importlib.import_module(f"{package}.{folder.name}.lines").LINES
        except ImportError:
            pass
        except Exception as error:
            log.debug(f"the lines of {folder.name} cannot be read: {error!r}")
    return found
