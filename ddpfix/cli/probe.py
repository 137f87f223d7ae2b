"""``ddpfix probe``: its words on the command line."""

from __future__ import annotations

import argparse
import sys

from ddpfix.cli.options import add_settings
from ddpfix.matrix.settings import SETTINGS


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's parser; the script and its arguments come as ``rest``."""
    parser = commands.add_parser(
        "probe",
        help="run a script on one rank for a few optimizer steps, and say what they show",
        allow_abbrev=False,
        usage="ddpfix probe [--steps 3] [--json] [options] (script | -m module | -c code | program) [args ...]",
        description="Ends the script after some optimizer steps, with exit code 0, and prints what was seen.",
    )
    parser.add_argument("--steps", default="3", metavar="STEPS", help="optimizer steps [3]")
    parser.add_argument("--json", action="store_true", help="the findings as JSON; the script prints to stderr")
    add_settings(parser)
    parser.set_defaults(action=_probe)


def _probe(options: argparse.Namespace) -> int:
    from ddpfix.cli import observe

    if not options.rest or options.rest in (["-m"], ["-c"]):
        sys.stderr.write("ddpfix: probe needs a script, -m module, -c code, or a program\n")
        return 2
    chosen = {s.name: getattr(options, s.name) for s in SETTINGS if getattr(options, s.name) is not None}
    return observe.observe(options.rest, options.steps, options.json, chosen)
