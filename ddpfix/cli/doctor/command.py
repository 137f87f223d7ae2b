"""``python -m ddpfix doctor``: its options, and its exit code."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    _Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_ABOUT = (
    "Prints what a maintainer asks for in an issue, problems first. Shows no values of environment variables but those"
    " of ddpfix. Exit code: 0 if nothing was found that stops a training, 1 if something was, 2 for a wrong use."
)


def add(commands: _Commands) -> None:
    doctor = commands.add_parser(
        "doctor", help="what is here, what would stop a training, and what to do", description=_ABOUT
    )
    doctor.add_argument("--json", action="store_true", help="print everything as JSON")
    doctor.add_argument(
        "--ranks",
        action="store_true",
        help="under a launcher: an all_reduce on all ranks, and what differs between them",
    )
    doctor.add_argument(
        "--limit", type=_seconds, default=60.0, metavar="SECONDS", help="--ranks: give up after so long [60]"
    )
    doctor.add_argument(
        "--backend", choices=("gloo", "nccl"), help="--ranks: the backend; nccl if all ranks have GPUs, else gloo"
    )
    doctor.set_defaults(action=show)


def _seconds(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{word!r}: expected seconds from 1 to 86400")
    return value


def show(options: argparse.Namespace) -> int:
    """Print the report, and return the exit code; MatrixError: the compatibility matrix cannot be read."""
    if options.ranks:
        from ddpfix.cli.doctor import ranks

        return ranks.show(options.limit, options.backend, options.json)
    from ddpfix.cli.doctor import examination

    report = examination.make()
    if options.json:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    else:
        from ddpfix.cli import plan
        from ddpfix.cli.doctor import screen

        plan.new_console().print(screen.whole(report))
    return 1 if report["blocked"] else 0
