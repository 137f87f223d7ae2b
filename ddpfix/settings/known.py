"""The settings that there are: names, defaults, accepted values and meanings."""

from __future__ import annotations

import os
from typing import Callable, NamedTuple, Optional, Tuple

PREFIX = "DDPFIX_"
# Settings that change what is trained. The others watch a training: a rank may have its own, and a typo in one of them
# switches nothing off.
TRAINING = ("unused", "layerdrop", "overrides", "untested", "uneven", "memory", "seed", "bypass")
# Patches that change nothing of what is trained.
OBSERVING = frozenset(
    f"torch.{name}" for name in ("diagnosis", "divergence", "failures", "hang", "probe", "init_file", "trace")
) | {"fastnlp.cause"}
# So much of a value that is refused is shown, and of an unknown name is compared with those that are known.
LONGEST = 200


class SettingsError(ValueError):
    """A setting has a name or a value that ddpfix does not know; the message names it and what is accepted."""


class Kind(NamedTuple):
    """Values of a setting that cannot be listed: their description, and the check that accepts them."""

    text: str
    check: Callable[[str], bool]
    # What such a value becomes, from the text as it was given; by default it is the text in small letters.
    convert: Optional[Callable[[str], str]] = None


class Setting(NamedTuple):
    """One setting: its name, default, accepted values, and what it takes beside them."""

    name: str
    default: str
    values: Tuple[str, ...]
    free: Optional[Kind] = None

    @property
    def kind(self) -> Optional[str]:
        return None if self.free is None else self.free.text

    @property
    def meaning(self) -> str:
        """Return what it does, for ``--help`` and the docs."""
        return _MEANINGS[self.name]

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def accepted(self) -> str:
        return ", ".join([*self.values, *([self.kind] if self.kind else [])])

    def validate(self, value: str, source: str) -> str:
        word = value.strip().lower()
        if word in self.values:
            return word
        if self.free is not None and self.free.check(word):
            return word if self.free.convert is None else self.free.convert(value.strip())
        raise SettingsError(f"{shown(source, value)}: expected {self.accepted}")


def shown(source: str, value: str) -> str:
    """Return a setting as a message shows it."""
    short = value if len(value) <= LONGEST else f"{value[:LONGEST]}..."
    return f"{source[: 2 * LONGEST]}={short!r}"


def _is_integer(word: str) -> bool:
    # Python itself refuses to read a number of thousands of digits.
    return word.isascii() and word.isdigit() and len(word) < 20 and int(word) < 2**63


def _is_folder(word: str) -> bool:
    # A word that switches something is no folder: one of that name is written as a path (./1).
    return bool(word) and "\0" not in word and word not in ("0", "1", "on", "true", "false", "yes", "no", "none")


def _absolute(path: str) -> str:
    """Return a folder as it is from here: a program may change its working directory later."""
    return os.path.abspath(os.path.expanduser(path))


def _is_seconds(word: str) -> bool:
    try:
        return 0 < float(word) < 86400 * 7
    except ValueError:
        return False


_INTEGER, _COUNT = Kind("an integer", _is_integer), Kind("an integer", lambda word: _is_integer(word) and int(word) > 0)
_SECONDS, _FOLDER = Kind("seconds (up to a week)", _is_seconds), Kind("a folder", _is_folder, _absolute)
SETTINGS: Tuple[Setting, ...] = (
    Setting("unused", "auto", ("auto", "find", "late", "static", "off")),
    Setting("layerdrop", "sync", ("sync", "off", "stock")),
    Setting("overrides", "apply", ("apply", "off")),
    Setting("untested", "unchanged", ("unchanged", "off")),
    Setting("uneven", "auto", ("auto", "pad", "join", "stop", "off")),
    Setting("memory", "on", ("on", "off")),
    Setting("cache", "off", ("off",), _COUNT),
    Setting("seed", "auto", ("auto",), _INTEGER),
    Setting("timeout", "60", (), _SECONDS),
    Setting("divergence", "warn", ("warn", "error", "off"), _COUNT),
    Setting("bypass", "auto", ("auto", "route", "off")),
    Setting("trace", "off", ("off",), _FOLDER),
    Setting("hang", "300", ("off",), _SECONDS),
    Setting("hang_exit", "off", ("off",), _SECONDS),
    Setting("log", "info", ("debug", "info", "warning", "error", "off")),
)
_MEANINGS = {
    "unused": "parameters without a gradient: auto (find where layers are skipped, else late), find"
    " (find_unused_parameters=True), late (completes reductions after each backward), static (static_graph=True), off"
    " (never touched)",
    "layerdrop": "LayerDrop: sync (all ranks skip the same layers), off (no layer is ever skipped), stock (as shipped)",
    "overrides": "settings that a toolkit drops: apply (they take effect, or a warning names them), off",
    "untested": "untested releases of a toolkit: unchanged (a fix is applied where the code that it needs is"
    " unchanged), off (no fix is applied)",
    "uneven": "ranks with different numbers of batches: auto (pad or join in FunASR, SpeechBrain and WeNet), pad"
    " (shorter ranks repeat batches), join (they add zero gradients), stop (all at the shortest), off; each of pad and"
    " join falls back to the other",
    "memory": "keep every batch within the toolkit's length limits and batch budgets",
    "cache": "release cached GPU memory every so many optimizer steps, or off",
    "seed": "seed of decisions that ranks share: auto (from rank 0's torch generator) or an integer",
    "timeout": "how long ranks wait for one that runs without ddpfix",
    "divergence": "replicas that differ, compared after steps 1, 2, 4, 8, then every 200: warn (says which rank, since"
    " when, where), error (ends the job), off, an integer (warn, so many steps apart)",
    "bypass": "training forwards of model.module, whose gradients DDP does not average: auto (sent through the wrapper"
    " where a toolkit's recipes do this), route (always sent through the wrapper), off",
    "trace": "folder of the trace, with one file a rank and one row for each optimizer step (docs/trace.md), or off",
    "hang": "seconds of waiting in a collective after which one paragraph says where each rank is (half of the process"
    " group's own time-out, where that is shorter), or off",
    "hang_exit": "seconds after that paragraph until waiting ranks are ended, or off (they wait on, as in plain torch)",
    "log": "what ddpfix prints on stderr",
}
