"""The table of ``ddpfix top``: what it says of each rank, of many, and of files that grow."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

import pytest
from rich.console import Console

from ddpfix.cli import main
from ddpfix.cli.top import command, ranks, table
from ddpfix.trace import reader, schema, tail

ROOT = Path(__file__).resolve().parents[2]


def line(folder: Path, rank: int, *rows: Dict[str, Any]) -> None:
    with schema.lines_file(folder, rank).open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def run(rank: int, size: int = 2, **more: Any) -> Dict[str, Any]:
    here = {"host": socket.gethostname(), "pid": os.getpid()}
    return {"kind": "run", "version": 1, "rank": rank, "world_size": size, "command": "train.py", **here, **more}


def step(number: int, ago: float = 0.0, total: float = 0.5, **more: Any) -> Dict[str, Any]:
    values = {"data": 0.05, "forward": 0.1, "backward": 0.3, "wait": 0.1, "optimizer": 0.05, "peak": 2**30}
    return {"kind": "step", "step": number, "time": time.time() - ago, "total": total, "loss": 0.5, **values, **more}


def shown(folder: Path, height: int = 50) -> str:
    console = Console(width=140, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(table.render(folder, command.Folder(folder).read(), height))
    return console.export_text()


def test_each_rank_has_a_line(tmp_path: Path) -> None:
    line(tmp_path, 0, run(0), *(step(n, ago=5 - n * 0.5) for n in range(1, 11)))
    line(tmp_path, 1, run(1), *(step(n, ago=5 - n * 0.5, wait=0.25, loss=None) for n in range(1, 10)))
    (first, second) = (ranks.look(each) for each in command.Folder(tmp_path).read())
    assert (first.step, first.state, first.loss, first.memory) == (10, ranks.RUNNING, 0.5, 2**30)
    assert first.speed == pytest.approx(2.0, rel=0.01)
    assert [first.data, first.wait] == pytest.approx([0.1, 0.2])
    assert (first.place, second.place) == ("mostly backward", "mostly wait") and second.wait == pytest.approx(0.5)
    text = shown(tmp_path)
    assert "2 of 2 ranks" in text and "train.py" in text and "1.00 GiB" in text and "20 %" in text
    assert "in groups" not in text


def test_states(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    line(tmp_path, 0, run(0), step(1), {"kind": "end", "time": 1.0, "how": "ended"})
    line(tmp_path, 1, run(1), step(1), {"kind": "end", "time": 1.0, "how": "failed: ValueError: x (a.py:3)"})
    line(tmp_path, 2, run(2, pid=gone.pid), step(1))
    line(tmp_path, 3, run(3), step(4, ago=60), {"kind": "at", "time": time.time() - 57, "step": 4, "phase": "backward"})
    line(tmp_path, 4, run(4, started=time.time()))
    # Of a process on another machine nobody knows here whether it is gone.
    line(tmp_path, 5, run(5, host="elsewhere", pid=gone.pid), step(1))
    # It is slow by itself.
    line(tmp_path, 6, run(6), step(1, ago=45, total=20.0), step(2, ago=25, total=20.0))
    looked = [ranks.look(each) for each in command.Folder(tmp_path).read()]
    expected = ["ended", "failed", "killed", "silent", "starting", "", ""]
    assert [each.state for each in looked] == expected
    assert looked[1].place == "failed: ValueError: x (a.py:3)"
    assert looked[3].place.startswith("backward of step 5 for 5") and looked[3].speed is None


def many(folder: Path, count: int) -> None:
    for rank in range(count):
        wait = 0.01 if rank == 17 else 0.2
        if rank == 5:
            line(folder, rank, run(rank, count), step(3, ago=100))
        else:
            line(folder, rank, run(rank, count), step(9, ago=0.6, wait=wait), step(10, wait=wait))


@pytest.mark.parametrize("count", [64, 300])
def test_many_ranks_are_groups_that_name_the_odd_ones(tmp_path: Path, count: int) -> None:
    many(tmp_path, count)
    text = shown(tmp_path, height=30)
    assert len(text.splitlines()) <= 30
    rows = [[cell.strip() for cell in each.split("│")[1:-1]] for each in text.splitlines() if each.startswith("│")]
    names = [each[0] for each in rows]
    assert names[:3] == ["1 silent", "5", f"{count - 1} running"] and names[3] == "17"
    assert "waits least" in rows[3][4] and "waits most" in rows[-1][4]
    assert rows[2][1] == "10" and rows[2][7] == "40 %" and rows[3][7] == "2 %"
    assert f"{count} ranks in groups" in text


def test_a_low_terminal_has_groups_and_a_high_one_has_ranks(tmp_path: Path) -> None:
    for rank in range(20):
        line(tmp_path, rank, run(rank, 20), step(1))
    assert "in groups" in shown(tmp_path, height=24) and len(shown(tmp_path, height=24).splitlines()) <= 24
    assert "in groups" not in shown(tmp_path, height=50)


def test_only_what_is_new_is_read_and_of_a_long_file_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line(tmp_path, 0, run(0), *(step(n, ago=1000 - n) for n in range(1, 3001)))
    parsed: List[int] = []
    parse = reader.parse
    monkeypatch.setattr(reader, "parse", lambda *each: parsed.append(1) or parse(*each))  # type: ignore
    found = tail.Tail(0, schema.lines_file(tmp_path, 0))
    found.read()
    assert found.header["world_size"] == 2 and found.last is not None and found.last["step"] == 3000
    assert len(parsed) < 2000
    parsed.clear()
    with schema.lines_file(tmp_path, 0).open("a") as file:
        file.write(json.dumps(step(3001)) + "\n" + '{"kind": "st')
    found.read()
    assert len(parsed) == 1 and found.last["step"] == 3001
    with schema.lines_file(tmp_path, 0).open("a") as file:
        file.write('ep", "step": 3002, "time": 5}\n')
    found.read()
    assert found.last["step"] == 3002


def test_batches_are_followed_and_of_a_long_stream_the_end(tmp_path: Path) -> None:
    pyarrow: Any = pytest.importorskip("pyarrow")
    made = schema.arrow_schema(pyarrow)

    def batch(first: int, count: int) -> bytes:
        rows = [{**dict.fromkeys(schema.NAMES), "step": n, "time": n / 2} for n in range(first, first + count)]
        whole: bytes = pyarrow.RecordBatch.from_pylist(rows, schema=made).serialize().to_pybytes()
        return whole

    line(tmp_path, 0, run(0))
    file = schema.arrow_file(schema.lines_file(tmp_path, 0))
    file.write_bytes(made.serialize().to_pybytes() + b"".join(batch(1 + 4 * n, 4) for n in range(400)))
    assert file.stat().st_size > 2 * tail._END
    found = tail.Tail(0, schema.lines_file(tmp_path, 0))
    found.read()
    assert [row["step"] for row in found.rows] == list(range(1601 - 64, 1601))
    content = batch(1601, 2)
    for part in (content[:100], content[100:-1]):
        with file.open("ab") as stream:
            stream.write(part)
        found.read()
        assert found.last is not None and found.last["step"] == 1600
    with file.open("ab") as stream:
        stream.write(content[-1:])
    found.read()
    assert found.rows[-1]["step"] == 1602
    # Another process of the rank begins anew.
    schema.lines_file(tmp_path, 0).rename(schema.lines_file(tmp_path, 0, 1))
    file.rename(schema.arrow_file(schema.lines_file(tmp_path, 0, 1)))
    line(tmp_path, 0, run(0, started=5.0))
    found.read()
    assert found.last is None and found.header["started"] == 5.0


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line(tmp_path, 0, run(0), step(1))
    # What is no terminal gets the table once.
    for words in ([], ["--once"], ["--interval", "0.5"]):
        assert main.main(["top", str(tmp_path), *words]) == 0
        assert "1 of 2 ranks, 1 without a trace here" in capsys.readouterr().out
    for wrong in (tmp_path / "nowhere", ROOT / "ddpfix"):
        assert main.main(["top", str(wrong)]) == 2
        assert str(wrong) in capsys.readouterr().err
    with schema.lines_file(tmp_path, 0).open("a") as file:
        file.write("damage\n")
    assert main.main(["top", str(tmp_path)]) == 2
    assert "rank-00000.jsonl, line 3" in capsys.readouterr().err
    for word in ("0", "soon", "nan"):
        with pytest.raises(SystemExit):
            main.main(["top", str(tmp_path), "--interval", word])
        assert "number of seconds" in capsys.readouterr().err


def test_a_terminal_shows_what_comes_until_it_is_interrupted(tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    line(tmp_path, 0, run(0), step(1))
    main_end, other_end = pty.openpty()
    words = [sys.executable, "-m", "ddpfix", "top", str(tmp_path), "--interval", "0.2"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "140", "LINES": "40"}
    # A job that a shell has put into the background, as this one may be, ignores the interrupt of a terminal.
    child = subprocess.Popen(
        words,
        stdin=other_end,
        stdout=other_end,
        stderr=subprocess.PIPE,
        env=environ,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(other_end)
    seen = b""
    try:
        limit = time.time() + 30
        while b"4242" not in seen and time.time() < limit:
            seen += os.read(main_end, 65536)
            if b"rank-" in seen or b"1 of 2 ranks" in seen:
                line(tmp_path, 0, step(4242))
        assert b"4242" in seen
        child.send_signal(2)
        while True:
            try:
                if not os.read(main_end, 65536):
                    break
            except OSError:
                break
        assert child.wait(10) == 0
        assert child.stderr is not None and child.stderr.read() == b""
    finally:
        child.kill()
        child.wait()
        os.close(main_end)
