"""What a trace has is what happened, by notes of the ranks' own; training is the same with it and without."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Dict

import pytest

from ddpfix.trace import reader
from tests.support import ranks as processes

pytestmark = [pytest.mark.patches("torch.trace"), pytest.mark.sampled(inside=False, cells=True)]
SCRIPT = Path(__file__).with_name("rank.py")
LATE, READ, PAUSE = 3, 5, 0.4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks have left."""
    made = tmp_path_factory.mktemp("trace")
    command = [*processes.elastic(2), str(SCRIPT), str(made)]
    code, output = processes.run(command, processes.environment(), made, 120)
    # Both ranks were killed at last.
    assert code == 1 and "SIGKILL" in output, output
    for rank in range(2):
        assert (made / f"found-{rank}.json").exists(), output
    (made / "output").write_text(output)
    return made


def noted(folder: Path, rank: int, run: str) -> Dict[str, Any]:
    found: Dict[str, Any] = json.loads((folder / f"found-{rank}.json").read_text())[run]
    return found


def test_rows_are_what_the_ranks_have_noted(folder: Path) -> None:
    trace = reader.read(folder / "rows")
    assert list(trace.runs) == [0, 1] and trace.earlier == {}
    for rank, run in trace.runs.items():
        own = noted(folder, rank, "rows")
        steps, notes = run.steps, own["steps"]
        count = len(notes)
        assert steps["step"] == list(range(1, count + 1))
        assert steps["shape"] == [note["shape"] for note in notes]
        (model,) = run.models
        names = model["parameters"]
        assert [sorted(names[i] for i in some) for some in steps["unused"]] == [sorted(n["unused"]) for n in notes]
        assert all(value > 2**20 for value in steps["peak"])
        assert run.end is not None and run.end["how"] == "ended"


def test_times_are_where_the_time_went(folder: Path) -> None:
    for rank, run in reader.read(folder / "rows").runs.items():
        steps = run.steps
        notes = noted(folder, rank, "rows")["steps"]
        for index, note in enumerate(notes[1:], 1):
            # The end of the step is the optimizer's, and the note comes a moment later.
            assert steps["total"][index] == pytest.approx(note["seconds"], abs=0.1)
            parts = sum(steps[name][index] for name in ("data", "forward", "backward", "optimizer"))
            assert parts <= steps["total"][index] + 1e-4
            assert 0 <= steps["wait"][index] <= steps["backward"][index] + 1e-5
        assert steps["data"][READ - 1] >= 0.9 * PAUSE
        late = steps["wait"][LATE - 1]
        assert late >= 0.6 * PAUSE if rank == 0 else late <= 0.5 * PAUSE
        assert all(later > before for before, later in zip(steps["time"], steps["time"][1:]))


def test_the_head_says_what_ran(folder: Path) -> None:
    for rank, run in reader.read(folder / "rows").runs.items():
        header = run.header
        assert (header["rank"], header["world_size"], header["local_rank"]) == (rank, 2, rank)
        assert str(SCRIPT) in header["command"] and header["torch"].startswith(header["toolkits"]["torch"])
        assert header["settings"]["trace"] == {"value": str(folder / "rows"), "from": "argument trace"}
        assert header["settings"]["unused"] == {"value": "auto", "from": "default"}
        states = {patch["id"]: patch["state"] for patch in header["patches"]}
        assert states["torch.trace"] == states["torch.finalize"] == "applied"
        # Rank 1 prints no such line.
        assert any("got no gradient" in event["text"] for event in run.events)
        assert {event["level"] for event in run.events} <= {"info", "warning"}
        (setting,) = run.settings
        assert (setting["name"], setting["requested"]) == ("find_unused_parameters", "not set")
        assert (setting["effective"], setting["note"]) == ("False", "")


def test_training_is_the_same_to_the_last_bit(folder: Path) -> None:
    for rank in (0, 1):
        digests = {noted(folder, rank, run)["digest"] for run in ("off", "rows", "refused")}
        assert len(digests) == 1
        losses = [[step["loss"] for step in noted(folder, rank, run)["steps"]] for run in ("off", "rows")]
        assert losses[0] == losses[1]


def test_where_it_is_off_nothing_of_it_is_imported_and_undo_is_whole(folder: Path) -> None:
    for rank in (0, 1):
        off, on = noted(folder, rank, "off"), noted(folder, rank, "rows")
        assert off["loaded"] == []
        # The program's list of threads does not have the one that writes (ddpfix/unlisted_thread.py).
        assert "ddpfix.trace.writer" in on["loaded"] and on["threads"] == off["threads"]
        assert off["problems"] == on["problems"] == []
        whole: Any = json.loads((folder / f"found-{rank}.json").read_text())
        assert whole["same"] is True and whole["listeners"] == 0


def test_a_folder_that_cannot_be_made_is_one_warning(folder: Path) -> None:
    lines = [line for line in (folder / "output").read_text().splitlines() if "stopped tracing" in line]
    assert len(lines) == 2
    for rank, line in enumerate(sorted(lines, key=lambda line: f"rank {1}" in line)):
        assert f"DDPFIX_TRACE={folder}/file-{rank}/inside" in line and "Training continues" in line


def test_a_killed_run_can_be_read(folder: Path) -> None:
    trace = reader.read(folder / "killed")
    for run in trace.runs.values():
        assert run.end is None and run.header["world_size"] == 2
        assert run.steps["step"][:4] == [1, 2, 3, 4] and len(run.steps["step"]) <= 5


def test_pandas_reads_it_in_a_line(folder: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="the extra rest: pip install 'ddpfix[rest]'")
    lines = pandas.read_json(folder / "rows" / "rank-00001.jsonl", lines=True)
    table = lines[lines["kind"] == "step"]
    assert list(table["step"]) == [1, 2, 3, 4, 5, 6] and table["total"].sum() > PAUSE


FAILS = """
import torch
layer = torch.nn.Linear(2, 2)
layer(torch.ones(1, 2)).sum().backward()
torch.optim.SGD(layer.parameters(), lr=0.1).step()
raise {error}
"""


@pytest.mark.parametrize(
    ("error", "explained"),
    [
        ("RuntimeError('ddpfix: gradients differ.' + 500 * ' x' + '\\\\nddpfix: cause: y')", True),
        ("RuntimeError('gradients differ')", False),
        ("type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})('x')", False),
    ],
)
def test_the_whole_message_of_an_own_error_is_in_the_trace(error: str, explained: bool, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(FAILS.replace("{error}", error))
    environ = processes.environment({"DDPFIX": "1", "DDPFIX_TRACE": str(tmp_path / "trace")})
    code, _ = processes.run([sys.executable, "script.py"], environ, tmp_path, 120)
    run = reader.read(tmp_path / "trace").runs[0]
    texts = [event["text"] for event in run.events if event["level"] == "diagnosis"]
    assert code == 1 and len(texts) == explained
    assert all(text.startswith("gradients differ.") and text.endswith("ddpfix: cause: y") for text in texts)
