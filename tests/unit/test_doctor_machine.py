"""``ddpfix doctor``: networks and limits, also those of other machines."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Dict, List

import pytest

from ddpfix.cli.doctor import limits, network
from ddpfix.cli.doctor.finding import BLOCKS, WARNING, Problem
from ddpfix.cli.doctor.network import Interface

V4 = int(socket.AF_INET)
LO = [Interface("lo", "127.0.0.1"), Interface("lo", "::1")]
ETH = [Interface("eth0", "10.0.0.5"), Interface("eth0", "fe80::1")]


def about(findings: List[Problem], *words: str) -> List[str]:
    """The levels of the findings whose text has all of the words."""
    return [each.level for each in findings if all(word in each.text for word in words)]


# Network.


def with_name(monkeypatch: pytest.MonkeyPatch, addresses: List[str], local: List[str]) -> None:
    """The host's name resolves to some addresses, of which some are its own."""
    monkeypatch.setattr(network, "resolve", lambda name: [(V4, (address, 0)) for address in addresses])
    monkeypatch.setattr(network, "is_local", lambda address: address[1][0] in local)


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
        ("gloo", {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, ["gloo would use the loopback"], [BLOCKS]),
        ("nccl", {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, ["gloo would use the loopback"], [WARNING]),
        ("gloo", {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}, ["would use the loopback"], []),
    ],
)
def test_interfaces_that_ranks_cannot_meet_over(
    backend: str, environ: Dict[str, str], words: List[str], levels: List[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_name(monkeypatch, ["127.0.1.1"], ["127.0.1.1"])
    section, findings = network.look(backend, environ, [*LO, *ETH])
    assert about(findings, *words) == levels
    # Names are shown, and no address.
    assert section["interfaces"] == ["lo", "eth0"]
    assert "10.0.0.5" not in json.dumps(section) + str(findings)


def test_the_interfaces_of_this_machine() -> None:
    """As the system's own list of names has them; loopback has its address everywhere."""
    found = list(network.addresses())
    assert {each.name for each in found} <= {name for _, name in socket.if_nameindex()}
    assert any(each.address == "127.0.0.1" and each.is_loopback for each in found)


def test_another_address_of_the_loopback_is_the_loopbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As hosts have it whose address is announced by a routing protocol."""
    import psutil

    address = psutil.net_if_addrs()["lo"][0]._replace(family=V4, address="10.0.0.9")
    state = psutil.net_if_stats()["lo"]
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"lo": [address], "eth0": [address]})
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {"lo": state})
    assert [(each.name, each.is_loopback) for each in network.addresses()] == [("lo", True), ("eth0", False)]


def test_a_host_of_a_thousand_containers() -> None:
    many = [Interface(f"veth{number}", "fe80::1") for number in range(1000)]
    section, findings = network.look("gloo", {}, [*LO, *many])
    assert len(section["interfaces"]) == 24


# Limits.


def test_shared_memory_of_a_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rooms = {"shm": limits.Room(64, 60)}
    monkeypatch.setattr(limits, "room", lambda where: rooms.get(where.name, limits.Room(9999, 9999)))
    section, findings = limits.look(None, tmp_path / "shm", (65536, 65536))
    assert section["shared_memory_mib"] == {"total": 64, "free": 60}
    assert about(findings, "/dev/shm has 64 MiB") == [WARNING] and "--shm-size" in findings[0].cure
    rooms["shm"] = limits.Room(16384, 3)
    assert about(limits.look(None, tmp_path / "shm", (65536, 65536))[1], "/dev/shm has only 3 of 16384 MiB left") == [
        WARNING
    ]


@pytest.mark.parametrize(("files", "levels"), [(1024, [WARNING]), (4096, []), (-1, [])])
def test_open_files(files: int, levels: List[str], tmp_path: Path) -> None:
    section, findings = limits.look(None, tmp_path, (files, 1 << 20))
    assert about(findings, "a process may open") == levels and section["open_files"]["soft"] == files
