"""``ddpfix doctor``: what it reads, what it judges, and what it never shows."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FunctionType
from typing import Any, Dict, List, Mapping, Optional, Tuple

import pytest

import ddpfix
from ddpfix.cli.doctor import (
    activation,
    choices,
    command,
    devices,
    examination,
    interfaces,
    launcher,
    limits,
    network,
    others,
    private,
    screen,
)
from ddpfix.cli.doctor import versions as doctor_versions
from ddpfix.cli.doctor.finding import BLOCKS, WARNING, Finding, in_order
from ddpfix.cli.doctor.interfaces import Interface
from ddpfix.cli.doctor.ranks import compare, group, measure, place, verdict
from ddpfix.cli.doctor.ranks.record import Record
from ddpfix.matrix import loader
from tests.support import ranks

ROOT = Path(__file__).parents[2]
V4, V6 = int(socket.AF_INET), int(socket.AF_INET6)
LO = [Interface("lo", V4, "127.0.0.1", 0x49), Interface("lo", V6, "::1", 0x49)]
ETH = [Interface("eth0", V4, "10.0.0.5"), Interface("eth0", V6, "fe80::1")]
DOCKER, BRIDGE = Interface("docker0", V4, "172.17.0.1"), Interface("virbr0", V4, "192.168.122.1")
IB = [Interface("ib0", V4, "10.1.0.5"), Interface("ibs1", V4, "10.2.0.5")]


def doctor(folder: Path, *words: str, **more: str) -> Tuple[int, str, str]:
    """Exit code, output and errors of the command in a process of its own."""
    environ = {**ranks.environment(), **more}
    command_line = [sys.executable, "-m", "ddpfix", "doctor", *words]
    done = subprocess.run(command_line, env=environ, cwd=str(folder), capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def shown(capsys: pytest.CaptureFixture[str], as_json: bool = False) -> Tuple[int, str, str]:
    """The same in this process."""
    code = command.show(argparse.Namespace(ranks=False, json=as_json))
    return (code, *capsys.readouterr())


def about(findings: List[Finding], *words: str) -> List[str]:
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


def no_secret_is_shown(code: int, output: str, errors: str) -> None:
    # MASTER_ADDR does not resolve, and DDPFIX_HF_TOKEN is no setting: both are told, without a value.
    assert code == 1 and "MASTER_ADDR does not resolve" in output and "DDPFIX_HF_TOKEN" in output, errors
    assert not [mark for mark in MARKS.values() if mark.lower() in (output + errors).lower()]
    assert str(ROOT) not in output and ("~/ddpfix" in output.replace("\n", ""))
    assert "WARN" in output and "NCCL_DEBUG" in output


@pytest.mark.parametrize("as_json", [True, False], ids=["json", "screen"])
def test_no_secret_and_no_name_is_in_the_output(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {**MARKS, "HOME": str(ROOT), "NCCL_DEBUG": "WARN"}.items():
        monkeypatch.setenv(name, value)
    no_secret_is_shown(*shown(capsys, as_json))


@pytest.mark.sampled(inside=False, cells=True)
def test_no_secret_is_in_the_output_of_a_process_of_its_own(tmp_path: Path) -> None:
    no_secret_is_shown(*doctor(tmp_path, HOME=str(ROOT), NCCL_DEBUG="WARN", **MARKS))


def test_harmless_variables_have_their_values_and_others_are_not_even_named() -> None:
    environ = {
        "RANK": "3",
        "NCCL_SOCKET_IFNAME": "^docker,lo",
        "DDPFIX_UNUSED": "find",
        "NCCL_TOPO_FILE": "/etc/topology of\nme",
        "SOMETHING": "1",
        "NCCL_API_KEY": "x",
        "WORLD_SIZE": "$(cat /etc/passwd)",
    }
    assert private.variables(environ, {"DDPFIX_UNUSED": "unused"}) == {
        "DDPFIX_UNUSED": "find",
        "NCCL_SOCKET_IFNAME": "^docker,lo",
        "NCCL_TOPO_FILE": "(set)",
        "RANK": "3",
        "WORLD_SIZE": "(set)",
    }


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
    assert private.text(words, "/home/ada", "ada") == expected


def test_a_machine_without_users(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(getpass, "getuser", nobody)
    monkeypatch.setattr(Path, "home", classmethod(lambda cls: nobody()))
    assert private.text("/root/x") == "/root/x"
    monkeypatch.setattr(Path, "home", classmethod(lambda cls: Path("/")))
    assert private.text("/root/x") == "/root/x"


# The command.


def test_the_page_names_every_key() -> None:
    report = examination.make()
    page = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    named = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    here = verdict.make(place.Place(0, 2, 0, "localhost", 1, False, "0"), None, [], {}, [])
    assert set(report) | set(here) == named


def test_a_broken_torch_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')\n")
    code, output, errors = doctor(tmp_path, "--json")
    report = json.loads(output)
    assert code == 1 and report["blocked"] and not errors
    assert report["findings"][0]["level"] == BLOCKS and "libcudart.so.12" in report["findings"][0]["text"]
    assert report["backend"]["would_take"] is None and report["network"]["interfaces"]


def test_settings_that_are_refused_and_a_home_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = {"HOME": "/proc/nowhere", "DDPFIX": "maybe", "DDPFIX_UNUSED": "always", "DDPFIX_LOG": "off"}
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    code, output, errors = shown(capsys)
    assert code == 1 and not errors
    flat = " ".join(output.split())
    assert "blocks: DDPFIX_UNUSED='always': accepted are auto, find" in flat
    assert "blocks: DDPFIX='maybe' is not understood" in flat
    assert "off (from DDPFIX_LOG)" in flat


@pytest.mark.sampled(inside=False, cells=True)
def test_under_ddpfix_the_states_are_those_of_this_process(tmp_path: Path) -> None:
    code, output, errors = doctor(tmp_path, "--json", DDPFIX="1")
    report = json.loads(output)
    assert code == 0, output + errors
    assert report["activation"]["switch"] == "on" and report["activation"]["active"] and report["activation"]["by"]
    states = {entry["id"]: entry["state"] for entry in report["patches"]["entries"]}
    assert states["torch.unused"] in ("applied", "registered") and states["torch.bucket_view"] == "off"
    assert report["others"]["replaced"] == []
    refused = json.loads(doctor(tmp_path, "--json", DDPFIX="1", DDPFIX_UNUSED="always")[1])
    assert not refused["activation"]["active"] and len(refused["findings"]) == 1


@pytest.mark.parametrize("word", ["0", "-1", "nan", "soon", "1e9"])
def test_a_limit_that_is_none(word: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="accepted are seconds from 1 to 86400"):
        command._seconds(word)


def test_ranks_without_a_launcher(tmp_path: Path) -> None:
    code, output, errors = doctor(tmp_path, "--ranks")
    assert code == 2 and not output and "torchrun --nproc_per_node 2 -m ddpfix doctor --ranks" in errors


def test_a_part_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*words: Any) -> Any:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(devices, "look", fails)
    report = examination.make()
    assert report["devices"] == {"error": "RuntimeError: no such thing"} and report["network"]["interfaces"]
    assert [each["about"] for each in report["findings"]].count("devices") == 1
    from rich.console import Console

    Console(file=open(os.devnull, "w"), width=140).print(screen.whole(report))  # noqa: SIM115


def test_what_stops_a_training_comes_first() -> None:
    slow, stops = Finding(WARNING, "x", "slow", ""), Finding(BLOCKS, "x", "stops", "")
    assert in_order([slow, stops]) == [stops, slow]


def test_settings_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    whole = loader.load()
    environ = {"DDPFIX_UNUSED": "never", "DDPFIX_SEED": "7", "DDPFIX_TORCH_UNUSED": "0", "DDPFIX_XYZZY": "1"}
    values, errors = choices.read(whole, environ)
    assert (values["unused"], values["seed"], values.switched("torch.unused")) == ("auto", "7", "0")
    assert len(errors) == 2 and "accepted are auto, find" in errors[0] and "DDPFIX_XYZZY is not a setting" in errors[1]
    (tmp_path / "pyproject.toml").write_text('[tool.ddpfix]\nunused = "yes"\n')
    values, errors = choices.read(whole, {"DDPFIX_SEED": "7"})
    assert values["seed"] == "7" and len(errors) == 1 and "pyproject.toml" in errors[0]
    section, findings = choices.look_at_settings(whole, values, errors)
    assert section["values"]["seed"] == {"value": "7", "from": "DDPFIX_SEED"}
    assert about(findings, "pyproject.toml") == [BLOCKS]


# How it is switched on.


def test_a_start_file_is_intact(tmp_path: Path) -> None:
    ours = (ROOT / "ddpfix" / "ddpfix.pth").read_bytes()
    assert activation.is_intact(ours, tmp_path / "ddpfix.pth", ROOT / "ddpfix")
    assert not activation.is_intact(ours[:-3], tmp_path / "ddpfix.pth", ROOT / "ddpfix")
    # A wheel has no copy of it in the package; its installer recorded the digest.
    package = tmp_path / "ddpfix"
    record = tmp_path / "ddpfix-0.1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("ddpfix.pth,sha256=LPJNul-wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ,5\n")
    assert activation.is_intact(b"hello", tmp_path / "ddpfix.pth", package)
    assert not activation.is_intact(b"hallo", tmp_path / "ddpfix.pth", package)


def test_another_ddpfix_than_that_of_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ddpfix").mkdir()
    (tmp_path / "ddpfix" / "__init__.py").write_text("")
    (tmp_path / "ddpfix.pth").write_text("import os")
    monkeypatch.setattr(activation, "site_packages", lambda: [tmp_path])
    section, findings = activation.look()
    assert about(findings, "this command runs ddpfix from", "training scripts import") == [WARNING]
    assert about(findings, "ddpfix.pth is not what was installed") == [WARNING]
    assert section["start_files"][0]["intact"] is False


def test_it_is_on_and_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDPFIX", "1")
    monkeypatch.setattr(activation, "_waits", lambda: False)
    ddpfix.deactivate()
    assert about(activation.look()[1], "DDPFIX is on, and ddpfix is not active") == [WARNING]
    monkeypatch.setenv("DDPFIX", "0")
    assert activation.look()[1] == []


# Others that patch.


def test_start_files_that_run_code(tmp_path: Path) -> None:
    (tmp_path / "ddtrace-hook.pth").write_text("import os, sys; import ddtrace.bootstrap\n")
    (tmp_path / "paths.pth").write_text("/somewhere/else\n")
    (tmp_path / "ddpfix.pth").write_text("import os; import ddpfix\n")
    assert others.start_files([tmp_path, tmp_path / "none"]) == {"ddtrace-hook.pth": ["ddtrace"]}


def test_what_has_been_replaced_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    import functools

    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import Optimizer

    assert others.replaced() == []
    original = DistributedDataParallel.forward

    def plain(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    code = functools.wraps(original)(
        FunctionType(plain.__code__, {"__name__": "tracer.hooks"}, None, None, plain.__closure__)
    )
    monkeypatch.setattr(DistributedDataParallel, "forward", code)
    ddpfix.activate(log="off")
    try:
        assert others.replaced() == [
            {"place": "torch.nn.parallel.distributed:DistributedDataParallel.forward", "by": "tracer"}
        ]
        assert len(others._judge({"replaced": others.replaced()})) == 1
    finally:
        ddpfix.deactivate()
    assert Optimizer is not None


def test_who_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"deepspeed": "0.19.8", "ddtrace": "4.1"}
    monkeypatch.setattr(doctor_versions, "version_of", versions.get)
    found = {each["name"]: each for each in others.installed({"ddtrace.pth": ["ddtrace"]})}
    assert set(found) == set(versions)
    assert found["ddtrace"]["starts_by_itself"] and not found["deepspeed"]["starts_by_itself"]
    assert "averages gradients by itself" in found["deepspeed"]["meaning"]


# Launchers.


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"TORCHELASTIC_RUN_ID": "x"}, "torch elastic (torchrun)"),
        ({"ACCELERATE_MIXED_PRECISION": "no"}, "accelerate"),
        ({"SLURM_PROCID": "0"}, "SLURM"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "Open MPI"),
        ({"CROSS_RANK": "1"}, "DeepSpeed"),
    ],
)
def test_a_launcher_is_recognised(environ: Dict[str, str], name: str) -> None:
    assert launcher.look({}, environ)[0]["recognised"] == [name]


@pytest.mark.parametrize(
    ("environ", "words", "level"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 is not below WORLD_SIZE=2", BLOCKS),
        ({"LOCAL_RANK": "first"}, "LOCAL_RANK is not a whole number", BLOCKS),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "but not MASTER_ADDR, MASTER_PORT", WARNING),
        ({"MASTER_ADDR": "no.such.host.invalid"}, "does not resolve", BLOCKS),
        ({"RANK": "0", "MASTER_ADDR": "192.0.2.99"}, "this is rank 0, and MASTER_ADDR is another host", BLOCKS),
    ],
)
def test_what_a_launcher_may_get_wrong(environ: Dict[str, str], words: str, level: str) -> None:
    findings = launcher.look({}, environ)[1]
    assert about(findings, words) == [level]
    assert not about(findings, "no.such.host") and not about(findings, "192.0.2.99")


def test_a_right_launcher_has_no_findings() -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    section, findings = launcher.look({}, {**environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"})
    assert findings == [] and section["master"] == {"resolves": True, "is_this_host": True}


# Network.


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("eth", ["eth0"]),
        ("=eth", []),
        ("=eth0,lo", ["lo", "eth0"]),
        ("^docker,lo", ["eth0", "ib0", "ibs1", "virbr0"]),
        ("^=lo", ["eth0", "docker0", "ib0", "ibs1", "virbr0"]),
        ("ib0:2", ["ib0"]),
        ("wlan", []),
    ],
)
def test_names_are_selected_as_nccl_does(words: str, expected: List[str]) -> None:
    assert network.select(words, [*LO, *ETH, DOCKER, *IB, BRIDGE]) == expected


@pytest.mark.parametrize(
    ("every", "environ", "expected"),
    [
        ([*LO, DOCKER, *ETH, *IB], {}, ["ib0", "ibs1"]),
        ([*LO, DOCKER, BRIDGE, *ETH], {}, ["eth0"]),
        ([*LO, DOCKER], {}, ["docker0"]),
        (LO, {}, ["lo"]),
        ([LO[1]], {}, []),
        ([*LO, *ETH], {"NCCL_SOCKET_IFNAME": "lo"}, ["lo"]),
        ([*LO, *ETH], {"NCCL_SOCKET_IFNAME": "e"}, ["eth0"]),
        ([*LO, ETH[0], Interface("eth1", V6, "fd00::7")], {"NCCL_SOCKET_FAMILY": "AF_INET6"}, ["eth1"]),
    ],
)
def test_what_nccl_would_take(every: List[Interface], environ: Dict[str, str], expected: List[str]) -> None:
    assert network.nccl(every, environ)["would_take"] == expected


def with_name(monkeypatch: pytest.MonkeyPatch, addresses: List[str], local: List[str]) -> None:
    """The host's name resolves to some addresses, of which some are its own."""
    monkeypatch.setattr(launcher, "resolve", lambda name: [(V4, (address, 0)) for address in addresses])
    monkeypatch.setattr(launcher, "is_local", lambda address: address[1][0] in local)


@pytest.mark.parametrize(
    ("addresses", "local", "expected", "loopback"),
    [
        (["10.0.0.5"], ["10.0.0.5"], ["eth0"], False),
        (["127.0.1.1", "10.0.0.5"], ["127.0.1.1", "10.0.0.5"], ["lo"], True),
        (["203.0.113.9", "10.0.0.5"], ["10.0.0.5"], ["eth0"], False),
        (["203.0.113.9"], [], ["lo"], True),
        ([], [], ["lo"], True),
    ],
)
def test_what_gloo_would_take(
    addresses: List[str], local: List[str], expected: List[str], loopback: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_name(monkeypatch, addresses, local)
    found = network.gloo([*LO, *ETH], {})
    assert (found["would_take"], found["loopback"]) == (expected, loopback)


@pytest.mark.parametrize(
    ("backend", "environ", "words", "levels"),
    [
        ("gloo", {"GLOO_SOCKET_IFNAME": "eth7"}, ["GLOO_SOCKET_IFNAME names no interface"], [BLOCKS]),
        ("nccl", {"GLOO_SOCKET_IFNAME": "eth0,eth7"}, ["GLOO_SOCKET_IFNAME names no interface"], [WARNING]),
        ("nccl", {"NCCL_SOCKET_IFNAME": "mlx"}, ["NCCL_SOCKET_IFNAME names no interface"], [BLOCKS]),
        ("gloo", {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, ["gloo would take the loopback"], [BLOCKS]),
        ("nccl", {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, ["gloo would take the loopback"], [WARNING]),
        ("gloo", {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}, ["would take the loopback"], []),
    ],
)
def test_interfaces_that_ranks_cannot_meet_over(
    backend: str, environ: Dict[str, str], words: List[str], levels: List[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_name(monkeypatch, ["127.0.1.1"], ["127.0.1.1"])
    section, findings = network.look(backend, environ, [*LO, *ETH])
    assert about(findings, *words) == levels
    # Names and kinds of addresses are shown, and no address.
    assert section["interfaces"]["eth0"] == {"up": True, "addresses": ["IPv4 private", "IPv6 link-local"]}
    assert "10.0.0.5" not in json.dumps(section) + str(findings)


def test_the_interfaces_of_this_machine() -> None:
    """As the system's own list of names has them; loopback has its address everywhere."""
    found = interfaces.here()
    assert {each.name for each in found} <= {name for _, name in socket.if_nameindex()}
    assert any(each.address == "127.0.0.1" and each.is_loopback for each in found)


def test_a_host_of_a_thousand_containers() -> None:
    many = [Interface(f"veth{number}", V6, "fe80::1") for number in range(1000)]
    section, findings = network.look("gloo", {}, [*LO, *many])
    assert len(section["interfaces"]) == 24 and section["more_interfaces"] == 977


# Devices and limits, from files of other machines.


def tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "cpus", "memory"),
    [
        (
            {
                "proc/self/cgroup": "0::/pod/own\n",
                "sys/fs/cgroup/pod/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/pod/own/cpu.max": "max 100000\n",
                "sys/fs/cgroup/pod/memory.max": f"{8 << 30}\n",
                "sys/fs/cgroup/pod/own/memory.max": "max\n",
            },
            2.0,
            8192,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:cpu:/x\n",
                # In a container the path is that of the machine, and the outermost folder is its own.
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 << 30}\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            1.5,
            4096,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/\n1:cpu:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
            None,
        ),
        ({}, None, None),
        ({"proc/self/cgroup": "broken\n::\n"}, None, None),
    ],
    ids=["v2", "v1", "unlimited", "none", "broken"],
)
def test_what_a_container_leaves(
    files: Dict[str, str], cpus: Optional[float], memory: Optional[int], tmp_path: Path
) -> None:
    root = tree(tmp_path, {**files, "proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 1048576 kB\nHuge: x\n"})
    assert devices.cpus(root)["cgroup_limit"] == cpus
    assert devices.memory(root) == {"total": 16384, "available": 1024, "cgroup_limit": memory}


def test_many_ranks_on_few_cpus_and_a_driver_without_gpus(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "100000 100000\n",
            "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Kernel Module  535.104.05  Sat Aug 19\n",
        },
    )
    section, findings = devices.look(None, {"LOCAL_WORLD_SIZE": "8"}, root)
    assert section["driver"] == "535.104.05"
    assert about(findings, "8 ranks on this machine share 1 CPUs") == [WARNING]
    assert about(findings, "has an NVIDIA driver, and torch sees no GPU") == [WARNING]
    assert devices.look(None, {"CUDA_VISIBLE_DEVICES": ""}, root)[1] == []


class FakeGpus:
    """Stands for torch with two GPUs."""

    class cuda:
        is_available = staticmethod(lambda: True)
        device_count = staticmethod(lambda: 2)
        can_device_access_peer = staticmethod(lambda one, other: False)

        @staticmethod
        def get_device_properties(number: int) -> Any:
            from types import SimpleNamespace

            return SimpleNamespace(name="H100", total_memory=80 << 30, major=9, minor=0)


def test_gpus(tmp_path: Path) -> None:
    section, findings = devices.look(FakeGpus, {"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "3"}, tmp_path)
    assert section["gpus"] == [{"name": "H100", "memory_mib": 81920, "capability": "9.0"}] * 2
    assert section["peer_access"] == ["-0", "0-"]
    assert about(findings, "3 ranks on this machine, and 2 GPUs") == [BLOCKS]
    assert devices.look(FakeGpus, {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, tmp_path)[1] == []


def test_shared_memory_of_a_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rooms = {"shm": limits.Room(64, 60)}
    monkeypatch.setattr(limits, "room", lambda where: rooms.get(where.name, limits.Room(9999, 9999)))
    section, findings = limits.look(None, tmp_path / "shm", (65536, 65536))
    assert section["shared_memory_mib"] == {"total": 64, "free": 60}
    assert about(findings, "/dev/shm has 64 MiB") == [WARNING] and "--shm-size" in findings[0].cure
    rooms["shm"] = limits.Room(16384, 3)
    assert about(limits.look(None, tmp_path / "shm", (65536, 65536))[1], "3 MiB left of 16384") == [WARNING]


@pytest.mark.parametrize(("files", "levels"), [(1024, [WARNING]), (4096, []), (-1, [])])
def test_open_files(files: int, levels: List[str], tmp_path: Path) -> None:
    section, findings = limits.look(None, tmp_path, (files, 1 << 20))
    assert about(findings, "a process may open") == levels and section["open_files"]["soft"] == files


def test_no_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def none() -> str:
        raise FileNotFoundError("no usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    assert about(limits.look(None, tmp_path, (-1, -1))[1], "no temporary files") == [BLOCKS]
    assert about(limits.look(None, tmp_path, (-1, -1), str(tmp_path / "gone"))[1], "no working directory") == [BLOCKS]


# What all ranks together say.


def record(rank: int, **facts: str) -> Record:
    same = {"torch version": "2.13.0", "setting unused": "auto", "CPUs": "8"}
    return Record(rank, f"host{rank // 8}", {**same, **facts}, ["gloo"], "", [])


def word(rank: int, clock: float = 0.0) -> Dict[str, Any]:
    times = {measure.title(name, size): [True, 0.001, 0.002, 0.003 + rank / 1e6] for name, size, _ in measure.PLAN}
    agreed = {"problem": None, "seconds": 0.1}
    return {"error": None, "times": times, "clock": 1e9 + clock, "agreement": agreed, "group_seconds": 1.0}


def test_thousands_of_ranks_have_a_report_of_one_size() -> None:
    size = 4096
    sick = Finding(WARNING, "limits", "/dev/shm has 64 MiB", "more")
    records = [record(rank, **({"CPUs": str(rank)} if rank % 2 else {})) for rank in range(size)]
    records = [r._replace(findings=[list(sick)] if r.rank >= 1000 else []) for r in records]
    words = {rank: word(rank, 30.0 if rank >= 4000 else 0.0) for rank in range(size)}
    begun = time.perf_counter()
    result = verdict.make(place.Place(0, size, 0, "x", 1, False, "0"), "gloo", records, words, [])
    assert time.perf_counter() - begun < 20
    assert not result["blocked"] and len(json.dumps(result)) < 20_000
    (entry,) = result["differences"]
    assert (entry["name"], entry["most_have"], entry["number"], len(entry["others"])) == ("CPUs", "8", 2048, 20)
    assert entry["others"][0] == {"rank": 1, "host": "host0", "value": "1"}
    texts = {each["text"]: each for each in result["findings"]}
    assert texts["/dev/shm has 64 MiB"]["number_of_ranks"] == 3096
    assert any("clocks differ by up to 30.0 s" in text for text in texts)
    assert result["collectives"][1]["slowest_rank"] == 4095 and result["hosts"]["number"] == 512
    assert result["collectives"][1]["bus_gb_per_s"] == pytest.approx((25 << 20) * 2 * 4095 / 4096 / 0.002 / 1e9)


@pytest.mark.parametrize(
    ("facts", "level"),
    [
        ({"torch version": "2.12.1"}, BLOCKS),
        ({"setting unused": "find"}, BLOCKS),
        ({"toolkit transformers": "5.0"}, BLOCKS),
        ({"setting log": "debug"}, WARNING),
        ({"numpy version": "1"}, WARNING),
    ],
)
def test_a_difference_that_ends_a_job_and_one_that_does_not(facts: Dict[str, str], level: str) -> None:
    records = [record(0), record(1, **facts), record(2)]
    (entry,) = compare.differences(records)
    assert entry["level"] == level and [each["rank"] for each in entry["others"]] == [1]
    assert compare.differences([record(0), record(1)]) == []


def test_wrong_values_and_errors_are_told() -> None:
    words = {0: word(0), 1: word(1), 2: {**word(2), "error": "all_reduce of 4 B: RuntimeError: gone", "times": {}}}
    words[1]["times"]["all_reduce of 25 MB"][0] = False
    here = place.Place(0, 4, 0, "x", 1, False, "0")
    result = verdict.make(here, "gloo", [record(rank) for rank in range(4)], words, [])
    texts = {each["text"]: each["ranks"] for each in result["findings"]}
    assert result["blocked"] and texts["all_reduce of 25 MB gave wrong values"] == [1]
    assert texts["all_reduce of 4 B: RuntimeError: gone"] == [2] and texts["1 ranks did not say how it went"] == [3]


@pytest.mark.parametrize(
    ("backends", "asked", "taken", "words"),
    [
        ([["gloo"], ["gloo"]], None, "gloo", ""),
        ([["nccl", "gloo"], ["nccl", "gloo"]], None, "nccl", ""),
        ([["nccl", "gloo"], ["gloo"]], None, "gloo", "some ranks have GPUs and NCCL"),
        ([["gloo"], ["gloo"]], "nccl", None, "nccl is not to be had on 2 of 2"),
        ([["nccl", "gloo"], ["nccl", "gloo"]], "gloo", "gloo", ""),
    ],
)
def test_the_backend_is_one_that_all_have(
    backends: List[List[str]], asked: Optional[str], taken: Optional[str], words: str
) -> None:
    problems: List[Dict[str, Any]] = []
    records = [record(rank)._replace(backends=each) for rank, each in enumerate(backends)]
    assert verdict.backend(records, asked, problems) == taken
    assert [words in each["text"] for each in problems] == ([True] if words else [])


def test_two_ranks_with_one_gpu() -> None:
    records = [record(rank)._replace(gpu=gpu) for rank, gpu in enumerate(["/0", "/0", "/1"])]
    assert [each["ranks"] for each in compare.same_gpu(records)] == [[0, 1]]
    assert compare.same_gpu([record(0), record(1)]) == []


def test_who_is_behind() -> None:
    stages = {0: [1, "x"], 1: [0, "x"], 3: [1, "x"]}
    assert group.behind(stages, 4) == [
        "rank 2: before the process group",
        "rank 1: making the process group",
        "rank 0, 3: all_reduce of 4 B",
    ]


@pytest.mark.parametrize("size", [1, 2, 7, 8, 4096, 100_000])
def test_the_sum_that_is_right(size: int) -> None:
    assert measure.expected_sum(size) == sum(rank % 7 + 1 for rank in range(size)) < 1 << 24


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"RANK": ""}, "RANK not set"),
        ({"RANK": "2"}, "RANK=2, WORLD_SIZE=2"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE='two'"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT=99999"),
    ],
)
def test_a_place_that_is_none(more: Dict[str, str], words: str) -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "29500"}
    assert place.read(environ).size == 2
    with pytest.raises(place.PlaceError) as caught:
        place.read({**environ, **more})
    assert words in str(caught.value) and "torchrun" in str(caught.value)
