"""Two real ranks under torch elastic, fresh or forked from waiting ones, and the records of each."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from tests.support import pool, results, scenario
from tests.support import ranks as kit

WORKER = Path(__file__).with_name("worker.py")
RANK = Path(__file__).with_name("rank.py")


@dataclass
class Scenario(scenario.Scenario):
    """Scenarios of the worker that one process a rank runs.

    Attributes:
        names: of the worker's functions.
        active: whether ddpfix is activated in the process, by a call.
        environ: environment variables.
        timeout: seconds after which a hanging run is ended.
    """

    names: Sequence[str] = ()
    active: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 120


@dataclass
class Outcome:
    """Exit code, all output, and by rank what the worker wrote for each scenario."""

    code: int
    output: str
    ranks: Dict[int, Dict[str, Any]]

    def records(self, scenario: str) -> List[Any]:
        """What the ranks wrote for one scenario, in the order of ranks; fails with the output if one wrote nothing."""
        assert len(self.ranks) > 0, self.output
        for rank, record in sorted(self.ranks.items()):
            assert scenario in record, f"rank {rank} wrote nothing for {scenario}\n{self.output}"
        return [record[scenario] for _, record in sorted(self.ranks.items())]


def ranks(
    scenarios: Sequence[str],
    environ: Optional[Mapping[str, str]] = None,
    before: Sequence[str] = (),
    size: int = 2,
    timeout: float = 180,
) -> Outcome:
    """Run scenarios of the worker on ``size`` ranks, with ``before`` in front of the command line."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*kit.elastic(size, before), str(WORKER), folder, *scenarios]
        code, output = kit.run(command, kit.environment(environ), Path(folder), timeout)
        records = {int(file.stem): json.loads(file.read_text()) for file in Path(folder).glob("*.json")}
    return Outcome(code, output, records)


def served(names: Sequence[str], active: bool, environ: Optional[Mapping[str, str]] = None) -> Outcome:
    """The same where it does not matter how ddpfix is switched on: in children of ranks that have imported all."""
    with tempfile.TemporaryDirectory() as folder:
        one = Scenario("served", tuple(names), active, dict(environ or {}))
        ended = pool.results(RANK, [one], Path(folder), 2, {}, results.Result)["served"]
    output = "".join(f"[{rank}] {line}\n" for rank, each in enumerate(ended) for line in each.log.splitlines())
    records = {rank: each.notes for rank, each in enumerate(ended) if not each.hung}
    return Outcome(1 if any(each.hung or each.error for each in ended) else 0, output, records)
