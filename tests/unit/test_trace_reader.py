"""The reader of a trace: what is incomplete at the end is dropped, other damage is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List

import pytest
import torch
from ddpfix.patches.torch.tracing.traced_model import LayerCalls
from torch.nn.modules import module as modules

from ddpfix.trace import reader, schema
from ddpfix.trace.reader import TraceError

RUN = {"kind": "run", "version": 1, "rank": 3, "world_size": 4, "patches": []}
ROWS: List[Dict[str, Any]] = [
    {"kind": "step", "step": 1, "total": 0.5, "skipped": [2, 4], "wait": 0.25},
    {"kind": "step", "step": 2, "total": 0.25, "skipped": [], "shape": [8, 100], "loss": "of an earlier release"},
]
LINES: List[Dict[str, Any]] = [
    RUN,
    {"kind": "model", "number": 0, "class": "Net", "layers": ["a"], "parameters": ["a.weight"]},
    {"kind": "event", "time": 6.0, "step": 0, "level": "info", "text": "a line"},
    {"kind": "setting", "name": "x", "requested": 1, "effective": 2, "note": ""},
    {"kind": "of a later release", "what": 1},
]


def write(folder: Path, rows: List[Dict[str, Any]], name: str = "rank-00003.jsonl") -> Path:
    file = folder / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def test_lines_come_back_as_columns(tmp_path: Path) -> None:
    write(tmp_path, [*LINES, *ROWS, {"kind": "end", "time": 9.0, "how": "ended"}])
    trace = reader.read(tmp_path)
    run = trace.runs[3]
    assert list(trace.runs) == [3] and run.header["world_size"] == 4
    assert [model["class"] for model in run.models] == ["Net"]
    assert [event["text"] for event in run.events] == ["a line"]
    assert run.settings == [{"name": "x", "requested": 1, "effective": 2, "note": ""}]
    assert run.end == {"time": 9.0, "how": "ended"}
    assert set(run.steps) == set(schema.NAMES) and {len(values) for values in run.steps.values()} == {2}
    assert run.steps["skipped"] == [[2, 4], []] and run.steps["wait"] == [0.25, None]
    assert run.steps["shape"] == [None, [8, 100]]


@pytest.mark.parametrize("cut", [1, 10, 30])
def test_an_incomplete_last_line_is_dropped(tmp_path: Path, cut: int) -> None:
    file = write(tmp_path, [RUN, *ROWS])
    file.write_bytes(file.read_bytes()[:-cut])
    run = reader.read(tmp_path).runs[3]
    assert run.steps["step"] == [1] and run.end is None


def test_a_file_of_nothing_is_a_run_that_has_just_begun(tmp_path: Path) -> None:
    write(tmp_path, [])
    run = reader.read(tmp_path).runs[3]
    assert run.header == {} and run.rank == 3 and run.steps["step"] == []


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (b'{"kind": "step", "step": \n', "line 2"),
        (b"\x00\x00\xff\xfe\n", "line 2"),
        (b"[1, 2]\n", 'expected an object with a "kind"'),
        (b'{"step": 1}\n', 'expected an object with a "kind"'),
        (b'{"kind": "run", "version": 99}\n', "format 99"),
        (b'{"kind": "step", "total": 0.5}\n', "step is None, which is no int"),
        (b'{"kind": "step", "step": 1, "total": NaN}\n', "total is nan, which is no float"),
        (b'{"kind": "step", "step": true}\n', "step is True, which is no int"),
        (b'{"kind": "step", "step": 1, "shape": [2, -1]}\n', "shape is [2, -1], which is no ints"),
        (b'{"kind": "model", "layers": ["a", 2]}\n', "layers is ['a', 2], which is no texts"),
        (b'{"kind": "run", "version": 1, "settings": []}\n', "settings is [], which is no table"),
        (b'{"kind": "event", "text": 1}\n', "text is 1, which is no text"),
    ],
)
def test_damage_is_named_with_file_and_line(tmp_path: Path, damage: bytes, said: str) -> None:
    file = write(tmp_path, [RUN])
    file.write_bytes(file.read_bytes() + damage + b'{"kind": "step", "step": 2}\n')
    with pytest.raises(TraceError, match="rank-00003.jsonl, line 2") as caught:
        reader.read(tmp_path)
    assert said in str(caught.value)


def test_a_folder_without_a_trace_is_named(tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text("{}\n")
    with pytest.raises(TraceError, match="no trace here"):
        reader.read(tmp_path)
    with pytest.raises(TraceError, match="nowhere"):
        reader.read(tmp_path / "nowhere")
    with pytest.raises(TraceError, match=r"other\.jsonl"):
        reader.read(tmp_path / "other.jsonl")
    with pytest.raises(TraceError, match="not a trace file"):
        reader.read_run(tmp_path / "other.jsonl")


def test_earlier_processes_of_a_rank_are_kept_apart(tmp_path: Path) -> None:
    write(tmp_path, [RUN, ROWS[1]])
    older = [write(tmp_path, [RUN, ROWS[0]], f"rank-00003.{number}.jsonl") for number in (1, 2, 10)]
    trace = reader.read(tmp_path)
    assert trace.runs[3].steps["step"] == [2]
    assert trace.earlier == {3: older}
    assert reader.read_run(older[0]).steps["step"] == [1]


def test_ranks_come_in_order(tmp_path: Path) -> None:
    for rank in (100000, 2, 1, 99999):
        write(tmp_path, [{**RUN, "rank": rank}], schema.lines_file(tmp_path, rank).name)
    assert list(reader.read(tmp_path).runs) == [1, 2, 99999, 100000]


def test_an_arrow_stream_of_an_earlier_release_is_named(tmp_path: Path) -> None:
    write(tmp_path, [RUN]).with_suffix(".arrow").write_bytes(b"x")
    with pytest.raises(TraceError, match="rank-00003.arrow: Arrow traces are not supported since 1.1.0"):
        reader.read(tmp_path)


# What a trace has of layers for which ddpfix does not draw: those that a forward did not call.


def test_layers_that_were_not_called() -> None:
    layers = [torch.nn.Linear(2, 2) for _ in range(4)]
    calls = LayerCalls(layers)
    calls.begin()
    # What a program saves in the forward has no hook of ours.
    assert not any(layer._forward_pre_hooks for layer in layers)
    for number in (3, 0, 3):
        layers[number](torch.ones(1, 2))
    calls.end()
    assert calls.skipped() == [1, 2]
    calls.begin()
    # A forward that used none of them is of another part of the model.
    assert calls.skipped() == []
    layers[1](torch.ones(1, 2))
    calls.end()
    assert calls.skipped() == [0, 2, 3] and not modules._global_forward_pre_hooks
