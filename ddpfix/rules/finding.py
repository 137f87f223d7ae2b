"""What the facts of ranks mean, as every message prints it."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence

# What a finding means for its reader: to be looked at, fine, or neither.
BAD, GOOD, PLAIN = "attention", "good", "plain"
# Spans of ranks that are listed.
_SPANS = 10
# Stands for the module that holds all others.
WHOLE = "the model"
# Characters of names in one line.
_LONGEST = 60


class Finding(NamedTuple):
    """One thing that happened, with its cause.

    Attributes:
        kind: which one of its rule's kinds.
        ranks: the ranks that it concerns; () for all.
        where: the modules, the line, or what each rank does and where.
        cause: a sentence, or a line for each; "" where nothing more is known.
        advice: what to do, likewise, with code to paste below it, indented; "" where the rule's caller knows that.
        may_end: whether a job may be ended for it: not while somebody debugs it.
        level: one of those above.
    """

    kind: str
    ranks: Sequence[int]
    where: str
    cause: str = ""
    advice: str = ""
    may_end: bool = True
    level: str = BAD

    @property
    def text(self) -> str:
        """The same in lines. A last line that is a sentence has room for the advice."""
        between = " " if self.where.rpartition("\n")[2][:1].isupper() else "\n"
        return between.join(self._sentences())

    @property
    def line(self) -> str:
        """The same in one line."""
        return " ".join(self._sentences())

    @property
    def note(self) -> str:
        """The same below an error of the program, each cause and cure on a line that begins with the name ddpfix."""
        causes = [f"\nddpfix: cause: {line}" for line in self.cause.splitlines()]
        cures = [f"\n{line}" if line[:1] == " " else f"\nddpfix: cure: {line}" for line in self.advice.splitlines()]
        return self.where + "".join(causes + cures)

    def data(self) -> Dict[str, Any]:
        """Return it as a trace has it."""
        return {name: getattr(self, name) for name in ("kind", "ranks", "where", "cause", "advice")}

    def _sentences(self) -> List[str]:
        *before, last = [part for part in (self.where, self.cause, self.advice) if part]
        return [*(part if part.endswith(".") else f"{part}." for part in before), last]


def runs(numbers: Iterable[int]) -> List[List[int]]:
    """Return numbers in order, consecutive ones together."""
    found: List[List[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return found


def several(ranks: Sequence[int], of: Optional[int] = None) -> str:
    """Ranks in words: "rank 3", "ranks 0 to 2", "ranks 0, 2 and 5 to 7"; ``of``: how many there are in all."""
    spans = runs(ranks)[:_SPANS]
    parts: List[str] = []
    for span in spans:
        parts += [f"{span[0]} to {span[-1]}"] if len(span) > 2 else map(str, span)
    left = (len(ranks) if of is None else of) - sum(map(len, spans))
    parts += [f"{left:,} more"] if left > 0 else []
    told = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"{'rank' if len(ranks) == 1 and left <= 0 else 'ranks'} {told}"


def in_short(names: Sequence[str]) -> str:
    """Return the modules of some parameters, at most four words; a parameter of the model itself goes by its own name.

    Without the names of all parameters, which :func:`collapsed` needs.
    """
    words: List[str] = []
    for module, parts in grouped(names).items():
        words += parts if module == WHOLE else [module]
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
