"""Which rank this is, as its launcher says."""

from __future__ import annotations

from typing import Mapping, NamedTuple

from ddpfix.cli.doctor import launcher

HOW = "torchrun --nproc_per_node 2 -m ddpfix doctor --ranks"


class PlaceError(ValueError):
    """The variables of a launcher are missing, or contradict each other. The message says what to do."""


class Place(NamedTuple):
    """One rank's place in the job.

    Attributes:
        rank: its number.
        size: how many there are.
        local: its number on this machine.
        address: of the store.
        port: of the store.
        agent: whether torch elastic keeps the store, and not rank 0.
        attempt: how often torch elastic has restarted the ranks.
    """

    rank: int
    size: int
    local: int
    address: str
    port: int
    agent: bool
    attempt: str


def read(environ: Mapping[str, str]) -> Place:
    """Return the place of this process.

    Raises:
        PlaceError: a variable is missing, or is not what it has to be.
    """
    missing = [name for name in launcher.NEEDED if not environ.get(name, "").strip()]
    if missing:
        raise PlaceError(f"--ranks needs a launcher ({', '.join(missing)} not set): {HOW}")
    numbers = {name: launcher.number(environ, name) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
    wrong = [f"{name}={environ[name]!r}" for name, value in numbers.items() if value is None]
    rank, size, port = (value or 0 for value in numbers.values())
    if wrong or not 0 <= rank < size or not 0 < port < 65536:
        found = ", ".join(wrong) or f"RANK={rank}, WORLD_SIZE={size}, MASTER_PORT={port}"
        raise PlaceError(
            f"{found}: accepted are whole numbers, RANK from 0 to WORLD_SIZE - 1, MASTER_PORT from 1 to 65535 ({HOW})"
        )
    return Place(
        rank,
        size,
        launcher.number(environ, "LOCAL_RANK") or 0,
        environ["MASTER_ADDR"].strip(),
        port,
        environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
    )
