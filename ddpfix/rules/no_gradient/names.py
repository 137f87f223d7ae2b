"""Names of parameters without gradient, grouped by module: thousands of names fit on a few lines."""

from __future__ import annotations

from collections import Counter
from typing import Dict, List, NamedTuple, Sequence, Tuple

from ddpfix.rules.finding import WHOLE, runs, short

_LINES = 20


class Group(NamedTuple):
    """Parameters of one module ("": the model itself); ``whole``: these are all of it that DDP reduces."""

    module: str
    names: List[str]
    whole: bool


def collapsed(names: Sequence[str], every: Sequence[str]) -> List[Group]:
    """Parameters by the highest module all of whose parameters are among them, or by the module that holds them."""
    total, found = (Counter(module for name in given for module in _above(name)) for given in (every, names))
    groups: Dict[str, List[str]] = {}
    whole: Dict[str, bool] = {}
    for name in names:
        above = _above(name)
        module = next((each for each in above if found[each] == total.get(each)), above[-1])
        groups.setdefault(module, []).append(name)
        whole[module] = found[module] == total.get(module)
    return [Group(module, held, whole[module]) for module, held in groups.items()]


def _above(name: str) -> List[str]:
    """Return the modules that hold a parameter, the outermost first; the model itself is the first one."""
    parts = name.split(".")[:-1]
    return ["", *(".".join(parts[: count + 1]) for count in range(len(parts)))]


def listed(groups: Sequence[Group]) -> str:
    """Return one line a group, at most twenty; numbered layers with the same parameters share a line."""
    lines: Dict[Tuple[str, str], List[str]] = {}
    for group in groups:
        above, _, number = group.module.rpartition(".")
        numbered = group.whole and number.isdigit()
        key = (f"{above}." if numbered else group.module or WHOLE, _parts(group))
        lines.setdefault(key, []).append(number if numbered else "")
    written = [f"\n    {name}{_ranges(numbers)} {text}" for (name, text), numbers in lines.items()]
    more = f"\n    and {len(written) - _LINES} more lines" if len(written) > _LINES else ""
    return "".join(written[:_LINES]) + more


def _ranges(numbers: Sequence[str]) -> str:
    """Return the numbers of some layers, as ranges; "" for what has none."""
    found = runs(int(each) for each in numbers if each)
    words = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in found]
    return ", ".join(words) + (", each" if len(numbers) > 1 else "")


def _parts(group: Group) -> str:
    count = len(group.names)
    if group.whole and count > 4:
        return f"(all {count} parameters)"
    start = len(group.module) + 1 if group.module else 0
    return f"({', '.join(name[start:] for name in group.names[:4])}{f' and {count - 4} more' if count > 4 else ''})"


def modules(groups: Sequence[Group]) -> str:
    """Return the modules of some groups in a few words."""
    names = [group.module or WHOLE for group in groups]
    single = [group.names[0] for group in groups if not group.whole and len(group.names) == 1]
    if len(single) == len(groups):
        names = single
    return short(names, 4)


def attribute(group: Group) -> str:
    """Return the module of a group as Python spells it, or its first parameter if it has more than these."""
    name = group.module if group.whole and group.module else group.names[0]
    parts = name.split(".")
    if all(part.isidentifier() or part.isdigit() for part in parts) and not parts[0].isdigit():
        return "model" + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in parts)
    return f"model.get_{'submodule' if name == group.module else 'parameter'}({name!r})"
