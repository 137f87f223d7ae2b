"""The lines with which the users of a toolkit change DDP's arguments, for the end of an error message."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, List, NamedTuple, Sequence, Tuple

_KINDS = ("find", "do_not_find", "not_static", "not_reentrant")
# Frames that are looked at for the one that has wrapped a model.
_FRAMES = 200


class Lines(NamedTuple):
    """The lines of one toolkit; "" where it has none, and the line for DDP itself is given.

    Attributes:
        callers: the beginnings of the names of the modules that wrap a model for it. A script counts as the module
            that its path spells (``wenet/bin/train.py``).
        find: has DDP look for unused parameters.
        do_not_find: has DDP look for none.
        not_static: leaves ``static_graph=True`` out, and has DDP look for unused parameters.
        not_reentrant: makes activation checkpointing non-reentrant.
        own: whether DDP gets the model as the user has it, so that a line of Python may name its parts.
    """

    name: str
    callers: Tuple[str, ...]
    find: str = ""
    do_not_find: str = ""
    not_static: str = ""
    not_reentrant: str = ""
    own: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether these are the lines of DDP itself."""
        return not self.callers


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
    known = [*_KNOWN, _of_fastnlp(), _of_trainer(), _of_accelerate()]
    for module in wrapped_by:
        for each in known:
            if any(f"{module}.".startswith(caller) for caller in each.callers):
                return each._replace(**{name: getattr(each, name) or getattr(PLAIN, name) for name in _KINDS})
    return PLAIN


def release(package: str) -> Tuple[int, ...]:
    """Return the numbers of the release of an imported package; () if it does not tell them."""
    text = str(getattr(sys.modules.get(package), "__version__", ""))
    numbers = text.split("+")[0].split(".")[:3]
    return tuple(int(number) for number in numbers if number.isdigit())


PLAIN = Lines(
    "DistributedDataParallel",
    (),
    find="DistributedDataParallel(model, find_unused_parameters=True)",
    do_not_find="DistributedDataParallel(model, find_unused_parameters=False)",
    not_static="DistributedDataParallel(model, find_unused_parameters=True, static_graph=False)",
    not_reentrant="torch.utils.checkpoint.checkpoint(function, *inputs, use_reentrant=False)",
    own=True,
)
LIGHTNING = Lines(
    "Lightning",
    ("lightning.pytorch.", "pytorch_lightning."),
    find='Trainer(..., strategy="ddp_find_unused_parameters_true")',
    do_not_find='Trainer(..., strategy="ddp")',
    not_static="Trainer(..., strategy=DDPStrategy(find_unused_parameters=True))",
)
_CHECKPOINTING = '--override_config "encoder_conf.gradient_checkpointing false"'
_KNOWN = (
    LIGHTNING,
    Lines("ESPnet", ("espnet2.",), find="--unused_parameters true", do_not_find="--unused_parameters false"),
    Lines(
        "FunASR",
        ("funasr.",),
        find="++train_conf.find_unused_parameters=true",
        do_not_find="++train_conf.find_unused_parameters=false",
    ),
    Lines(
        "SpeechBrain",
        ("speechbrain.",),
        find="--find_unused_parameters",
        do_not_find="--find_unused_parameters=False",
    ),
    # DDP looks for unused parameters there unless checkpointing is on, which 3.0.0 and later have.
    Lines("WeNet", ("wenet.",), find=_CHECKPOINTING, not_reentrant=_CHECKPOINTING),
)


def _of_fastnlp() -> Lines:
    """Keywords of the trainer itself in 0.7, below ``torch_kwargs`` from 1.0 on."""
    is_new = release("fastNLP") >= (1, 0)
    trainer = "Trainer(..., torch_kwargs={'ddp_kwargs': {'find_unused_parameters': %s}})"
    line = trainer if is_new else "DistTrainer(..., find_unused_parameters=%s)"
    return Lines("fastNLP", ("fastNLP.",), line % True, line % False, not_static=line % True if is_new else "")


def _of_trainer() -> Lines:
    line = "TrainingArguments(..., ddp_find_unused_parameters=%s)"
    arguments: Any = getattr(sys.modules.get("transformers.training_args"), "TrainingArguments", None)
    # From 4.35 on.
    has_keywords = "gradient_checkpointing_kwargs" in getattr(arguments, "__dataclass_fields__", ())
    not_reentrant = "TrainingArguments(..., gradient_checkpointing_kwargs={'use_reentrant': False})"
    return Lines(
        "Trainer",
        ("transformers.trainer",),
        line % True,
        line % False,
        not_static=line % True,
        not_reentrant=not_reentrant if has_keywords else "",
        own=True,
    )


def _of_accelerate() -> Lines:
    line = "Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=%s)])"
    return Lines("accelerate", ("accelerate.",), line % True, line % False, not_static=line % True, own=True)
