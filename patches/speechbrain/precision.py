"""``--precision`` is what a Brain trains in.

Before 1.0 it becomes an override of the yaml and a KeyError, or, where the yaml has the key, does nothing: the release
has other names for it, which later ones still read.
"""

from __future__ import annotations

from ddpfix import log

from .line import Line
from .parser import Option

NAMES = ("fp32", "fp16", "bf16")
OPTIONS = (Option("precision", "one", real=False),)
# What releases before 1.0 have, and later ones still read.
_OLD = {"auto_mix_prec": "fp16", "bfloat16_mix_prec": "bf16"}


def normalise(line: Line) -> None:
    """Give the release's own options the values that ``precision`` means; it beats theirs in the yaml."""
    value = line.user_values.get("precision")
    if value is not None and line.has("precision"):
        for option in _OLD:
            # The release prefers these names, also where only the yaml has them.
            if option not in line.user_values and line.tree.get(option) is not None:
                line.set(option, False)
        return
    given = line.typed | line.of_yaml | ({"precision"} if line.has("precision") else set())
    if value is None and line.tree.get("precision") in _OLD.values() and not given & {"precision", *_OLD}:
        # A yaml that was written for 1.0; the old names count, where they are given.
        value = line.tree["precision"]
    if value is None:
        return
    if line.tree.get("precision", "fp32") not in NAMES:
        # A key of the recipe's own, that means something else.
        line.drop("precision")
        return
    for option, precision in _OLD.items():
        if line.has(option) and option not in line.user_values:
            line.set(option, value == precision)
    if value != "fp32":
        option = {precision: name for name, precision in _OLD.items()}[value]
        if not line.has(option):
            log.warning(f"precision: {value} in the yaml has no effect in this release of SpeechBrain")
            return
        now = "bf16" if line.has("bfloat16_mix_prec") else "fp32"
        on_cpu = value == "fp16" and "cuda" not in str(line.values.get("device"))
        cpu = f", which trains in {now} on the CPU" if on_cpu else ""
        log.info(f"precision={value} means --{option} in this release{cpu}")


def check(line: Line) -> None:
    """End the run for a value that no release knows, and for one that this release has nothing for."""
    value = line.user_values.get("precision")
    if value is None or line.has("precision") or line.tree.get("precision", "fp32") not in NAMES:
        return
    if value not in NAMES:
        line.fail(f"--precision={value}: use one of {', '.join(NAMES)}")
    if value == "bf16" and not line.has("bfloat16_mix_prec"):
        line.fail("--precision=bf16: bf16 needs SpeechBrain 0.5.14. Use fp16")
