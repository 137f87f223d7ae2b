"""The base of all scenarios: a name, and a plan that is sent to the ranks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict


@dataclass
class Scenario:
    """One run on ranks; a subclass says what is run, and has a ``timeout`` as well."""

    name: str

    def plan(self, folder: Path) -> Dict[str, Any]:
        """The request to the ranks, as far as JSON can hold it."""
        return asdict(self)
