"""What the other ranks of a model have found about the step in which this one fails."""

from __future__ import annotations

from typing import List, Sequence

from ddpfix.ranks.store import comparison
from ddpfix.rules.names import collapsed, modules
from ddpfix.system import System

from ..internals import process_groups
from ..pipeline import ddp
from .evidence import Evidence


class Others:
    """What the other ranks have found about the same step."""

    def __init__(self, case: Evidence, numbers: Sequence[int]) -> None:
        self._model, self._own = case.model, System.json(sorted(numbers))
        self.here = f"rank {process_groups.own_rank()}"
        case.number += 1
        ranks = process_groups.ranks_of(case.model.wrapper.process_group)
        name = f"{case.model.number}/{case.number}"
        # The other ranks may not have a model without a name.
        self._found = (
            comparison.compare(name, process_groups.own_rank(), ranks, self._own) if case.model.number else None
        )

    def agree(self) -> bool:
        """Return whether all ranks have found the same, as far as they can be asked."""
        return self._found is None or (len(self._found.findings) == 1 and self._found.answered == self._found.size)

    def say(self) -> str:
        """On how many ranks it is the same."""
        found = self._found
        if found is None:
            return ""
        same = max((each.ranks for each in found.findings if each.text == self._own), default=1)
        if self.agree():
            return f", the same on all {found.size} ranks"
        return f", the same on {same} of {found.size} ranks" if same > 1 else ", not the same on all ranks"

    def disagree(self) -> List[str]:
        """Return the differing results of other ranks."""
        found = self._found
        if found is None or self.agree():
            return []
        texts = []
        for each in found.findings:
            if each.text != self._own:
                names = names_of(self._model, System.loads(each.text))
                more = f" and {each.ranks - 1} more" if each.ranks > 1 else ""
                texts.append(f"rank {each.rank}{more}: {modules(collapsed(names, self._model.names))}")
        if found.answered < found.size:
            limit = f"{comparison.LIMIT:g} s"
            texts.append(f"{self._silent(found)} did not answer within {limit}: no such error there, or it has exited")
        return [f"the ranks disagree; {'; '.join(texts)}"]

    @staticmethod
    def _silent(found: comparison.Found) -> str:
        if not found.silent:
            return f"{found.size - found.answered} ranks"
        shown = ", ".join(map(str, found.silent[:4]))
        return f"rank {shown}" + (f" and {len(found.silent) - 4} more" if len(found.silent) > 4 else "")


def names_of(model: ddp.Wrapped, numbers: Sequence[int]) -> List[str]:
    """Return the names of some parameters."""
    return [model.names[number] for number in numbers if number < len(model.names)]
