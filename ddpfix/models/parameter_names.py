"""Names of parameters, grouped by the layer that holds them: thousands of names fit on a few lines."""

from __future__ import annotations

from typing import Dict, List, Sequence

# Stands for the module that holds all others.
WHOLE = "the model"
# Characters of names in one line.
_LONGEST = 60


def in_short(names: Sequence[str], every: Sequence[str] = ()) -> str:
    """Return the modules of some parameters, at most four words; a parameter of the model itself goes by its own name.

    Args:
        every: of all parameters of the model; a parameter whose module holds others as well then keeps its own name.
    """
    words: List[str] = []
    known = set(names)
    for module, parts in grouped(names).items():
        inside = f"{module}."
        if module == WHOLE:
            words += parts
        elif all(name in known for name in every if name.startswith(inside)):
            words.append(module)
        else:
            words += [inside + part for part in parts]
    return short(words, 4)


def short(words: Sequence[str], most: int) -> str:
    """Return the first words, as many as fit into a line, and the number of those that follow."""
    while most > 1 and len(", ".join(words[:most])) > _LONGEST:
        most -= 1
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def grouped(names: Sequence[str]) -> Dict[str, List[str]]:
    """Names by the layer that holds them: the part up to the last number, or the module."""
    groups: Dict[str, List[str]] = {}
    for name in names:
        parts = name.split(".")
        numbers = [i for i, part in enumerate(parts) if part.isdigit()]
        cut = numbers[-1] + 1 if numbers and numbers[-1] + 1 < len(parts) else len(parts) - 1
        groups.setdefault(".".join(parts[:cut]) or WHOLE, []).append(".".join(parts[cut:]))
    return groups
