"""The command line: ``run``, ``probe``, ``plan``, ``explain``, ``doctor``, ``demo``, ``report``."""

from __future__ import annotations

import argparse
import sys
from typing import Any, List, Mapping, NoReturn, Optional, Set, Tuple

from ddpfix import __version__, _switch
from ddpfix.cli.report import command as report
from ddpfix.matrix.model import MatrixError
from ddpfix.settings import gone
from ddpfix.settings.reading import PREFIX, SETTINGS, Setting, SettingsError, near

_COMMANDS = ("run", "probe", "plan", "explain", "doctor", "demo", "report")
# What ddpfix requires beside torch (report: numpy), by import name: an installation may lack some.
_REQUIRED = ("rich", "packaging", "numpy")
_DOCTOR = (
    "Prints what a maintainer asks for in an issue, problems first. Shows no values of environment variables but those"
    " of ddpfix. Exit code: 0 if nothing was found that stops a training, 1 if something was, 2 for a wrong use."
)
_WHAT = "(script | -m module | -c code | program) [args ...]"


def main(arguments: Optional[List[str]] = None) -> int:
    """Run one command; return the exit code. ``run`` does not return: it becomes the program that it starts."""
    words, command = _split(sys.argv[1:] if arguments is None else arguments)
    earlier = " ".join(["ddpfix", *words[:1]])
    if earlier in gone.GONE:
        # The code is 0: a script that showed something beside its job goes on.
        _switch.say(gone.answer(earlier))
        return 0
    parser = _parser()
    options = parser.parse_args(words)
    if options.command is None:
        parser.print_help()
        return 0
    try:
        return _act(options, command)
    except (SettingsError, MatrixError) as error:
        _switch.say(str(error))
        return 2
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _REQUIRED:
            raise
        _switch.say(f"this command needs {package}: {sys.executable} -m pip install {package}")
        return 2


def _act(options: argparse.Namespace, command: List[str]) -> int:
    """Run a command, of which only the modules are imported that it needs."""
    name = options.command
    chosen = {s.name: getattr(options, s.name) for s in SETTINGS if getattr(options, s.name, None) is not None}
    if name in ("run", "probe") and (not command or command in (["-m"], ["-c"])):
        sys.stderr.write(f"ddpfix: {name} needs a script, -m module, -c code, or a program\n")
        return 2
    if name == "run":
        from ddpfix.cli import run

        return run.become(command, chosen)
    if name == "probe":
        from ddpfix.cli import observe

        return observe.observe(command, options.steps, options.json, chosen)
    if name == "plan":
        from ddpfix.cli import plan

        plan.show(chosen, as_json=options.json, everything=options.all)
        return 0
    if name == "explain":
        from ddpfix.cli import explain

        return explain.explain(options.patch)
    if name == "doctor":
        from ddpfix.cli.doctor import ranks, screen

        return ranks.show(options.limit, options.backend, options.json) if options.ranks else screen.show(options.json)
    if name == "demo":
        from ddpfix.cli.demo import story

        return story.show(options.steps)
    return report.show(options)


class _Parser(argparse.ArgumentParser):
    """Its parsers of commands are of this class as well, and know their options."""

    def __init__(self, **keywords: Any) -> None:
        self.options: Set[str] = set()
        self.commands: Mapping[str, _Parser] = {}
        super().__init__(**keywords)

    def add_argument(self, *names: Any, **keywords: Any) -> argparse.Action:
        if keywords.get("help") != argparse.SUPPRESS:
            self.options.update(name for name in names if name.startswith("--"))
        return super().add_argument(*names, **keywords)

    def error(self, message: str) -> NoReturn:
        known = {*self.options, *self.commands, *(f"--{setting.name}" for setting in SETTINGS)}
        known.update(*(command.options for command in self.commands.values()))
        unknown = message.partition("unrecognized arguments:")[2] or message.partition("invalid choice: ")[2]
        words = [word.partition("=")[0].strip("',") for word in unknown.partition("(")[0].split()]
        asked = [question for question in (near(word, sorted(known)) for word in words) if question]
        super().error(_switch.printable(message) + "".join(asked[:1]))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="ddpfix", description="The known fixes for multi-GPU fine-tuning failures.")
    parser.add_argument("--version", action="version", version=f"ddpfix {__version__}")
    commands: Any = parser.add_subparsers(dest="command", metavar=f"{{{','.join(_COMMANDS)}}}")
    text, usage = "run a script, module, code or program under ddpfix", f"ddpfix run [options] {_WHAT}"
    run = commands.add_parser("run", help=text, allow_abbrev=False, usage=usage)
    probe = commands.add_parser(
        "probe",
        help="run a script on one rank for a few optimizer steps, and say what they show",
        allow_abbrev=False,
        usage=f"ddpfix probe [--steps 3] [--json] [options] {_WHAT}",
        description="Ends the script after some optimizer steps, with exit code 0, and prints what was seen.",
    )
    probe.add_argument("--steps", default="3", metavar="STEPS", help="optimizer steps [3]")
    probe.add_argument("--json", action="store_true", help="the findings as JSON; the script prints to stderr")
    plan = commands.add_parser("plan", help="say what ddpfix does in this environment; changes nothing")
    plan.add_argument("--all", action="store_true", help="every fix, also those that are not applied, with the reason")
    plan.add_argument("--json", action="store_true", help="print the plan as JSON")
    for command in (run, probe, plan):
        _add_settings(command)
    explain = commands.add_parser("explain", help="what a fix does, for which problem, evidence, versions and setting")
    text = "the name of a fix as plan prints it (transformers.layerdrop)"
    explain.add_argument("patch", help=text)
    text = "what is here, what would stop a training, and what to do"
    doctor = commands.add_parser("doctor", help=text, description=_DOCTOR)
    doctor.add_argument("--json", action="store_true", help="print everything as JSON")
    text = "under a launcher: an all_reduce on all ranks, and what differs between them"
    doctor.add_argument("--ranks", action="store_true", help=text)
    text = "--ranks: give up after so long [60]"
    doctor.add_argument("--limit", type=_seconds, default=60.0, metavar="SECONDS", help=text)
    text = "--ranks: the backend; nccl if all ranks have GPUs, else gloo"
    doctor.add_argument("--backend", choices=("gloo", "nccl"), help=text)
    text = "Trains a tiny random model on two ranks (CPU, no download), unpatched and then under ddpfix."
    demo = commands.add_parser("demo", help="two real ranks on the CPU: the failure, then the fix", description=text)
    demo.add_argument("--steps", type=int, default=20, help="optimizer steps under ddpfix [20]")
    report.add(commands)
    parser.commands = commands.choices
    for name, command in commands.choices.items():
        _add_removed(name, command)
    return parser


def _add_settings(command: argparse.ArgumentParser) -> None:
    """Have a command take each setting as an option."""
    group = command.add_argument_group("settings", "each is a variable and a key of pyproject.toml as well")
    for setting in SETTINGS:
        text = f"{setting.meaning} (default: {setting.default}; {setting.variable})"
        group.add_argument(f"--{setting.name}", metavar=_values(setting), help=text.replace("%", "%%"))


def _add_removed(name: str, command: argparse.ArgumentParser) -> None:
    """Have a command say what became of the options that it had."""
    for option, key in gone.options(name):
        # The value of a removed one, if any follows, is read over.
        now = gone.RENAMED.get(key, "")[len(PREFIX) :].lower()
        nargs = None if now else "?"
        command.add_argument(option, nargs=nargs, action=_Gone, key=key, dest=now or key, help=argparse.SUPPRESS)


def _split(words: List[str]) -> Tuple[List[str], List[str]]:
    """Return the words for us, and the command that is to be started: argparse would look for our options in that too.

    ``argparse.REMAINDER`` begins with a positional, so that ``-m module`` would be refused; with ``-m`` as an option of
    ours, the options of the module in ``-mmodule --unused x`` would be taken for ours.
    """
    if words[:1] not in (["run"], ["probe"]):
        return words, []
    place = 1
    while place < len(words) and words[place][:1] == "-" and words[place][:2] not in ("-m", "-c", "-"):
        if words[place] == "--":
            return words[:place], words[place + 1 :]
        # Nearly every option of ours takes a value; whatever else stands here is refused by the parser.
        valued = words[place].startswith("--") and "=" not in words[place] and words[place] not in ("--json", "--help")
        place += 2 if valued else 1
    return words[:place], words[place:]


def _seconds(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{word!r}: expected seconds from 1 to 86400")
    return value


class _Gone(argparse.Action):
    """Answers an option with the line of its key in a table of ``gone``; a renamed one sets what its new name does."""

    def __init__(self, *names: Any, key: str, **keywords: Any) -> None:
        super().__init__(*names, **keywords)
        self._key = key

    def __call__(self, parser: object, namespace: object, values: object, option_string: object = None) -> None:
        _switch.say(gone.answer(self._key, str(option_string)))
        if self._key in gone.RENAMED:
            setattr(namespace, self.dest, values)


def _values(setting: Setting) -> str:
    # argparse up to Python 3.12 fails to wrap a usage with parentheses in it.
    kind = [] if setting.kind is None else [setting.kind.partition(" (")[0].upper().replace(" ", "_")]
    return "{" + ",".join([*setting.values, *kind]) + "}"
