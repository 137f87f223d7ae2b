"""What the facts of ranks mean, as every message prints it."""

from __future__ import annotations

from typing import List, NamedTuple, Sequence


class Finding(NamedTuple):
    """One thing that happened, with its cause.

    Attributes:
        kind: which one of its rule's kinds.
        ranks: the ranks that it concerns; () for all.
        where: the modules, the line, or what each rank does and where.
        cause: a sentence; "" where nothing more is known.
        advice: what to do; "" where the rule's caller knows that.
        may_end: whether a job may be ended for it: not while somebody debugs it.
    """

    kind: str
    ranks: Sequence[int]
    where: str
    cause: str = ""
    advice: str = ""
    may_end: bool = True

    @property
    def text(self) -> str:
        """The same in lines. A last line that is a sentence has room for the advice."""
        told = f"{self.where}.\n{self.cause}" if self.cause else self.where
        between = " " if told.rpartition("\n")[2][:1].isupper() else "\n"
        return f"{told}.{between}{self.advice}" if self.advice else told


def several(ranks: Sequence[int]) -> str:
    """Ranks in words: "rank 3", "ranks 0 to 2", "ranks 0, 2 and 5 to 7"."""
    known = sorted(ranks)
    spans: List[List[int]] = []
    for rank in known:
        if spans and rank == spans[-1][-1] + 1:
            spans[-1].append(rank)
        else:
            spans.append([rank])
    parts: List[str] = []
    for span in spans:
        parts += [f"{span[0]} to {span[-1]}"] if len(span) > 2 else [str(rank) for rank in span]
    told = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"{'rank' if len(known) == 1 else 'ranks'} {told}"
