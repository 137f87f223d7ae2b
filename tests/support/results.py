"""What one rank left of a scenario."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Type, TypeVar

R = TypeVar("R", bound="Result")


@dataclass
class Result:
    """What one rank saw; a subclass has a field for each part of the record that it knows."""

    log: str
    hung: bool = False  # whether it had to be killed; nothing was recorded then
    error: Optional[str] = None
    kept: Optional[Path] = None  # a file with tensors, if the rank left one
    notes: Dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls: Type[R], log: str, record: Optional[Dict[str, Any]], kept: Optional[Path] = None) -> R:
        """The result of a rank that printed ``log`` and left ``record``."""
        if record is None:
            return cls(log, hung=True)
        names = {each.name for each in fields(cls)} - {"log", "hung", "kept", "notes"}
        known = {name: value for name, value in record.items() if name in names}
        notes = {name: value for name, value in record.items() if name not in names}
        return cls(log, kept=kept if kept is not None and kept.exists() else None, notes=notes, **known)


def well(of_ranks: Sequence[Result]) -> None:
    """All ranks have ended by themselves, without an error."""
    for result in of_ranks:
        assert not result.hung and result.error is None, result.log[-3000:]


def lines(log: str) -> List[str]:
    """The lines of a log, of which a paragraph of ddpfix is one."""
    return log.replace("\nddpfix:   ", " ").splitlines()
