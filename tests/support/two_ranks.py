"""A script on two ranks that leaves what each found as JSON, for tests whose toolkit is imported anew."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Dict

from tests.support import ranks


def found(script: Path, folder: Path, limit: float = 300) -> Dict[str, Any]:
    """What the script leaves (:func:`leave`); both ranks have to leave the same."""
    command = [*ranks.elastic(2), str(script), str(folder)]
    code, text = ranks.run(command, ranks.with_release(), folder, limit)
    assert code == 0, text[-6000:]
    one, other = (json.loads((folder / f"found.{rank}.json").read_text()) for rank in range(2))
    assert one == other
    whole: Dict[str, Any] = one
    return whole


def leave(data: Dict[str, Any]) -> None:
    """Called by the script, on each rank of a group."""
    from torch import distributed

    (Path(sys.argv[1]) / f"found.{distributed.get_rank()}.json").write_text(json.dumps(data))
    distributed.barrier()
