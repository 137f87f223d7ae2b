"""``--precision`` before 1.0, where the release has other names for it or nothing of the kind, and its bad values.

Before 1.0 it becomes an override of the yaml and a KeyError, or, where the yaml has the key, does nothing.
"""

from __future__ import annotations

from ddpfix import log

from .line import Line
from .parser import Option

NAMES = ("fp32", "fp16", "bf16")
_NAMES = ("precision", "eval_precision")
OPTIONS = tuple(Option(name, "one", real=False) for name in _NAMES)
# What releases before 1.0 have, and later ones still read.
_OLD = {"auto_mix_prec": "fp16", "bfloat16_mix_prec": "bf16"}


def check(line: Line) -> None:
    """End the run for a value that no release knows, and for one that this release has nothing for."""
    for name in _NAMES:
        if _foreign(line, name):
            line.user_values.pop(name, None)
        elif name in line.user_values:
            _accepted(line, name, line.user_values[name])
    value = line.user_values.get("precision")
    for option, precision in _OLD.items():
        if value in (None, precision) or not line.user_values.get(option):
            continue
        if not line.has("precision"):
            line.fail(f"--precision={value} contradicts --{option} ({precision}). Remove one of them")
        log.warning(f"--precision={value} is ignored: this release uses --{option} ({precision})")


def _foreign(line: Line, name: str) -> bool:
    """Return whether the yaml has a key of that name that means something else, in a release without that option."""
    return not line.has(name) and name in line.tree and line.tree[name] not in NAMES


def _accepted(line: Line, name: str, value: str) -> None:
    if value not in NAMES:
        line.fail(f"--{name}={value}: use one of {', '.join(NAMES)}")
    if line.has(name) or value == "fp32":
        return
    if name == "eval_precision":
        line.fail(f"--{name}={value}: this release of SpeechBrain always evaluates in fp32")
    if value == "bf16" and not line.has("bfloat16_mix_prec"):
        line.fail(f"--{name}=bf16: bf16 needs SpeechBrain 0.5.14. Use fp16")


def normalise(line: Line) -> None:
    """Give the release's own options the values that ``precision`` means; it beats theirs in the yaml."""
    if line.has("precision"):
        _of_yaml(line)
        for option in _OLD:
            if "precision" in line.user_values and option not in line.user_values and line.tree.get(option) is not None:
                line.set(option, False)
        return
    value = line.user_values.get("precision")
    for option, precision in _OLD.items():
        if value is not None and line.has(option) and option not in line.user_values:
            line.set(option, value == precision)
    if value is None:
        _old(line)
    elif value != "fp32":
        log.info(f"--precision={value} means --{_means(line, value)}")


def _of_yaml(line: Line) -> None:
    for name in _NAMES:
        if name in line.of_yaml and line.values[name] not in NAMES:
            line.fail(f"{name}: {line.values[name]} in the yaml: use one of {', '.join(NAMES)}")


def _old(line: Line) -> None:
    """``precision: fp16`` in a yaml that was written for 1.0."""
    value = line.tree.get("precision")
    option = next((name for name, precision in _OLD.items() if precision == value and line.has(name)), None)
    if value not in _OLD.values() or set(_OLD) & (line.typed | line.of_yaml):
        return
    if option is None:
        log.warning(f"precision: {value} in the yaml has no effect in this release of SpeechBrain")
        return
    line.values[option] = True
    line.of_yaml.add(option)
    log.info(f"precision: {value} in the yaml means --{_means(line, str(value))}")


def _means(line: Line, value: str) -> str:
    option = {precision: name for name, precision in _OLD.items()}[value]
    if value == "fp16" and "cuda" not in str(line.values.get("device")):
        now = "bf16" if line.has("bfloat16_mix_prec") else "fp32"
        return f"{option} in this release, which trains in {now} on the CPU"
    return f"{option} in this release"
