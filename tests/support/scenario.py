"""What all scenarios have: a name, and a plan that is sent to the ranks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict


@dataclass
class Scenario:
    """One run on ranks; what is run is told by a subclass, which has a ``timeout`` as well.

    Attributes:
        name: how its outcome is asked for.
    """

    name: str

    def plan(self, folder: Path) -> Dict[str, Any]:
        """What the ranks are told, as far as JSON can hold it.

        Args:
            folder: where the ranks leave their records.
        """
        return asdict(self)
