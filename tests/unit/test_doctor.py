"""``ddpfix doctor``: what it reads, what it judges, and what it never shows."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest

import ddpfix
from ddpfix.cli import main
from ddpfix.cli.doctor import examination, ranks, screen
from ddpfix.cli.doctor.examination import BLOCKS, WARNING, Problem
from ddpfix.matrix import loader
from tests.support import ranks as processes

ROOT = Path(__file__).parents[2]


def doctor(folder: Path, *words: str, **more: str) -> Tuple[int, str, str]:
    """Exit code, output and errors of the command in a process of its own."""
    environ = {**processes.environment(), **more}
    command_line = [sys.executable, "-m", "ddpfix", "doctor", *words]
    done = subprocess.run(command_line, env=environ, cwd=str(folder), capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def shown(capsys: pytest.CaptureFixture[str], as_json: bool = False) -> Tuple[int, str, str]:
    """The same in this process."""
    code = screen.show(as_json)
    return (code, *capsys.readouterr())


def about(findings: List[Problem], *words: str) -> List[str]:
    """The levels of the findings whose text has all of the words."""
    return [each.level for each in findings if all(word in each.text for word in words)]


# Nothing secret.

SECRETS = {
    "HF_TOKEN": "hf-",
    "WANDB_API_KEY": "wandb-",
    "AWS_SECRET_ACCESS_KEY": "aws-",
    "NCCL_AUTH_TOKEN": "nccl-",
    "TORCH_NCCL_KEY": "key-",
    "NCCL_COMM_ID": "10.9.8.7:",
    "NCCL_NET_PLUGIN": "/home/somebody/",
    "DDPFIX_HF_TOKEN": "ours-",
    "DATABASE_URL": "postgres://user:",
    "MASTER_ADDR": "host-",
    "PASSWORD": "pass-",
}


MARKS = {name: f"{value}m{number}rk{number}" for number, (name, value) in enumerate(SECRETS.items())}


@pytest.mark.parametrize("as_json", [True, False], ids=["json", "screen"])
def test_no_secret_and_no_name_is_in_the_output(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {**MARKS, "HOME": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    code, output, errors = shown(capsys, as_json)
    # DDPFIX_HF_TOKEN is no setting, which is said without its value.
    assert code == 1 and "DDPFIX_HF_TOKEN" in output, errors
    assert not [mark for mark in MARKS.values() if mark.lower() in (output + errors).lower()]
    assert str(ROOT) not in output and ("~/ddpfix" in output.replace("\n", ""))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("/home/ada/venv/torch.py", "~/venv/torch.py"),
        ("in /home/ada, not /home/adam", "in ~, not /home/adam"),
        ("/scratch/ada/x and /scratch/adam/x", "/scratch/USER/x and /scratch/adam/x"),
        ("a canada", "a canada"),
    ],
)
def test_a_path_has_no_home_and_no_user(words: str, expected: str) -> None:
    assert examination.private(words, "/home/ada", "ada") == expected


def test_a_machine_without_users(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(getpass, "getuser", nobody)
    for home in ("", "/", "~"):
        assert examination.private("/srv/x", home) == "/srv/x"


# All ranks, without ranks.


def rank(number: int, report: Dict[str, Any], **facts: str) -> Dict[str, Any]:
    here = {"rank": number, "host": "host", "right": True, "all_reduce_ms": 40.0, "findings": report["findings"]}
    return {**here, "facts": {"open files": "1024", **facts}, "must_be_equal": {"torch": "2.13.0"}}


def test_thousands_of_ranks_have_a_report_of_one_size() -> None:
    sick = Problem(WARNING, "limits", "/dev/shm has 64 MiB", "more")
    well: Dict[str, Any] = {"findings": []}
    ill = {"findings": [sick._asdict()]}
    every = [rank(n, ill if n >= 1000 else well, **({"open files": str(n)} if n % 2 else {})) for n in range(4096)]
    every[7]["right"], every[9]["must_be_equal"] = False, {"torch": "2.12.1"}
    result = ranks._result(every, "gloo", 1.0)
    assert len(json.dumps(result)) < 20_000 and len(result["ranks"]) == 20 and result["world_size"] == 4096
    texts = {each["text"]: each["level"] for each in result["findings"]}
    assert texts["all_reduce gave a wrong sum on rank 7"] == BLOCKS
    (differs,) = [text for text in texts if text.startswith("torch differs: 2.13.0 on rank 0, 1, 2, ")]
    assert differs.endswith("and 4075 more, 2.12.1 on rank 9") and texts[differs] == BLOCKS
    (other,) = [text for text in texts if text.startswith("open files differs: 1024 on rank 0, 2, 4, ")]
    assert other.endswith("and 2045 more values") and texts[other] == WARNING
    assert any(
        text.endswith(" and 3076 more]") for text in texts if text.startswith("/dev/shm has 64 MiB [rank 1000, ")
    )


# The command.


def test_the_page_names_every_key() -> None:
    report = examination.make()
    page = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    named = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    assert set(report) | set(ranks._result([rank(0, report)], "gloo", 0.1)) == named


def test_a_broken_torch_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')\n")
    code, output, errors = doctor(tmp_path, "--json")
    report = json.loads(output)
    assert code == 1 and report["blocked"] and not errors
    assert report["findings"][0]["level"] == BLOCKS and "libcudart.so.12" in report["findings"][0]["text"]
    assert report["network"]["backend"] is None and report["network"]["interfaces"]


def test_settings_that_are_refused_and_a_home_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = {"HOME": "/proc/nowhere", "DDPFIX": "maybe", "DDPFIX_UNUSED": "always", "DDPFIX_LOG": "off"}
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    code, output, errors = shown(capsys)
    assert code == 1 and not errors
    flat = " ".join(output.split())
    assert "blocks: DDPFIX_UNUSED='always': expected auto, find" in flat
    assert "blocks: DDPFIX='maybe' is neither on (1, true, yes, on) nor off" in flat
    assert "off (from DDPFIX_LOG)" in flat


@pytest.mark.sampled(inside=False, cells=True)
def test_under_ddpfix_the_states_are_those_of_this_process(tmp_path: Path) -> None:
    code, output, errors = doctor(tmp_path, "--json", DDPFIX="1")
    report = json.loads(output)
    assert code == 0, output + errors
    assert report["activation"]["switch"] == "on" and report["activation"]["active"] and report["activation"]["by"]
    states = {entry["id"]: entry["state"] for entry in report["patches"]["entries"]}
    assert states["torch.flag"] in ("applied", "registered") and states["torch.trace"] == "off"
    refused = json.loads(doctor(tmp_path, "--json", DDPFIX="1", DDPFIX_UNUSED="always")[1])
    assert not refused["activation"]["active"] and len(refused["findings"]) == 1


@pytest.mark.parametrize("word", ["0", "-1", "nan", "soon", "1e9"])
def test_a_limit_that_is_none(word: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected seconds from 1 to 86400"):
        main._seconds(word)


def test_ranks_without_a_launcher(tmp_path: Path) -> None:
    code, output, errors = doctor(tmp_path, "--ranks")
    assert code == 2 and not output and "torchrun --nproc_per_node 2 -m ddpfix doctor --ranks" in errors


def test_a_part_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*words: Any) -> Any:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(examination, "limits", fails)
    report = examination.make()
    assert report["limits"] == {"error": "RuntimeError: no such thing"} and report["network"]["interfaces"]
    assert [each["about"] for each in report["findings"]].count("limits") == 1
    from rich.console import Console

    Console(file=open(os.devnull, "w"), width=140).print(screen.whole(report))  # noqa: SIM115


def test_settings_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    whole = loader.load()
    environ = {"DDPFIX_UNUSED": "never", "DDPFIX_SEED": "7", "DDPFIX_TORCH_FLAG": "0", "DDPFIX_XYZZY": "1"}
    values, errors = examination.read_settings(whole, environ)
    assert (values["unused"], values["seed"], values.switched("torch.flag")) == ("auto", "7", "0")
    assert len(errors) == 2 and "expected auto, find" in errors[0] and "DDPFIX_XYZZY is not a setting" in errors[1]
    (tmp_path / "pyproject.toml").write_text('[tool.ddpfix]\nunused = "yes"\n')
    values, errors = examination.read_settings(whole, {"DDPFIX_SEED": "7"})
    assert values["seed"] == "7" and len(errors) == 1 and "pyproject.toml" in errors[0]
    section, findings = examination.settings_in_force(values, errors)
    assert section["values"]["seed"] == {"value": "7", "from": "DDPFIX_SEED"}
    assert about(findings, "pyproject.toml") == [BLOCKS]


# How it is switched on.


def test_it_is_on_and_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDPFIX", "1")
    monkeypatch.setattr(examination, "_waits", lambda: False)
    ddpfix.deactivate()
    assert about(examination.activation()[1], "DDPFIX is on, but ddpfix is not active") == [WARNING]
    monkeypatch.setenv("DDPFIX", "0")
    assert examination.activation()[1] == []


# The machine.


@pytest.mark.parametrize(
    ("backend", "environ", "words", "levels"),
    [
        ("gloo", {"GLOO_SOCKET_IFNAME": "eth7"}, ["GLOO_SOCKET_IFNAME names no interface"], [BLOCKS]),
        ("nccl", {"GLOO_SOCKET_IFNAME": "eth0,eth7"}, ["GLOO_SOCKET_IFNAME names no interface"], [WARNING]),
        ("gloo", {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, ["gloo would use the loopback"], [BLOCKS]),
        ("gloo", {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "eth0"}, ["loopback"], []),
        ("nccl", {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, ["gloo would use the loopback"], [WARNING]),
        ("gloo", {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}, ["would use the loopback"], []),
    ],
)
def test_interfaces_that_ranks_cannot_meet_over(
    backend: str, environ: Dict[str, str], words: List[str], levels: List[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["lo", "eth0", *(f"veth{number}" for number in range(1000))]
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(names)))
    monkeypatch.setattr(examination, "own_address", lambda name: "127.0.1.1")
    section, findings = examination.network(backend, environ)
    assert about(findings, *words) == levels
    assert section["interfaces"] == names[:24]


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [(["127.0.0.1"], "127.0.0.1"), (["203.0.113.9", "127.0.0.1"], "127.0.0.1"), (["203.0.113.9"], None), ([], None)],
)
def test_the_address_that_gloo_binds(
    addresses: List[str], expected: Optional[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *words, **more: found)
    assert examination.own_address("host") == expected


@pytest.mark.parametrize(("total", "levels"), [(64, [WARNING]), (16384, [])])
def test_shared_memory_of_a_container(total: int, levels: List[str], monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(total=total << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda where: usage)
    section, findings = examination.limits(None, files=65536)
    assert section["shared_memory_mib"] == total and about(findings, "/dev/shm has", "MiB") == levels


@pytest.mark.parametrize(("files", "levels"), [(1024, [WARNING]), (4096, []), (-1, [])])
def test_open_files(files: int, levels: List[str]) -> None:
    section, findings = examination.limits(None, "/nowhere", files)
    assert about(findings, "a process may open") == levels and section["open_files"] == files
