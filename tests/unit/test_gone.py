"""A removed name is answered with one line: since when, and what to do instead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator

import pytest

import ddpfix
from ddpfix.cli import main as cli
from ddpfix.cli.doctor import examination
from ddpfix.matrix import loader
from ddpfix.settings import gone, reading
from tests.support import readme

# One of each kind, so that the ways to ask are tested whatever is in the table.
KINDS: Dict[str, str] = {
    "DDPFIX_EXAMPLE": "leave it out",
    "torch.example": "see docs/torch.md",
    "ddpfix example": "python -m ddpfix report",
    "ddpfix report --example": "python -m ddpfix report --json",
    "ddpfix.example": "docs/usage.md",
    "ddpfix[example]": "nothing: it needs no package",
}
NAMES = sorted({**gone.GONE, **KINDS})


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for key, instead in KINDS.items():
        monkeypatch.setitem(gone.GONE, key, instead)
    monkeypatch.setattr(ddpfix, "_GONE", (*ddpfix._GONE, "example"))
    # A setting and a patch that had other names.
    monkeypatch.setitem(gone.RENAMED, "DDPFIX_SEEDS", "DDPFIX_SEED")
    monkeypatch.setitem(gone.RENAMED, "torch.stuck", "torch.hang")
    yield


def _line(key: str, shown: str = "") -> str:
    return f"{shown or key} was removed in 1.1.0: {gone.GONE[key]}"


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_is_short_names_nothing_that_exists_and_is_explained(name: str, capsys: Any) -> None:
    assert len(_line(name)) <= 240 and not gone.GONE[name].endswith(".")
    known = {*loader.load().patches, *(setting.variable for setting in reading.SETTINGS)}
    assert name not in known
    assert name.rpartition("ddpfix ")[2] not in cli._COMMANDS
    assert name.rpartition("ddpfix.")[2] not in ddpfix.__all__
    for word in {name, name.replace("ddpfix ", "")}:
        assert cli.main(["explain", word]) == 0
        assert capsys.readouterr() == ("", f"ddpfix: {_line(name)}\n")


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("ddpfix")])
@pytest.mark.parametrize("value", ["0", "1", "anything"])
def test_a_setting_or_switch_changes_nothing(name: str, value: str, tmp_path: Path) -> None:
    patches = loader.load().patches
    variable = name if name.startswith("DDPFIX_") else reading.switch_name(name)
    keyword = variable[len("DDPFIX_") :].lower()
    (tmp_path / "pyproject.toml").write_text(f'[tool.ddpfix]\n{keyword} = "{value}"\n')
    plain = reading.read({}, patches, {})
    ways = {
        variable: reading.read({}, patches, {variable: value}),
        f"argument {keyword}": reading.read({keyword: value}, patches, {}),
        f"pyproject.toml [tool.ddpfix] {keyword}": reading.read({}, patches, {}, tmp_path),
    }
    for shown, found in ways.items():
        assert found.gone == [_line(name, shown)]
        assert (found.values, found.switches, found.sources) == (plain.values, plain.switches, plain.sources)


def _renamed(shown: str, now: str) -> str:
    return f"{shown} was renamed in 1.1.0, and works until 1.2.0: use {now}"


def test_a_renamed_setting_or_switch_works() -> None:
    patches = loader.load().patches
    for word in ("0", "off"):
        found = reading.read({"torch_stuck": "force"}, patches, {"DDPFIX_TORCH_STUCK": word})
        assert found.switched("torch.hang") == "0"
        assert found.gone == [
            _renamed("DDPFIX_TORCH_STUCK", "DDPFIX_TORCH_HANG"),
            _renamed("argument torch_stuck", "DDPFIX_TORCH_HANG"),
        ]
    found = reading.read({}, patches, {"DDPFIX_SEEDS": "4"})
    assert found["seed"] == "4" and found.gone[-1] == _renamed("DDPFIX_SEEDS", "DDPFIX_SEED")
    with pytest.raises(reading.SettingsError, match="DDPFIX_SEEDS='x': expected auto, an integer"):
        reading.read({}, patches, {"DDPFIX_SEEDS": "x"})


@pytest.mark.parametrize(
    ("name", "value", "given"),
    [
        ("seed", "5", {"DDPFIX_SEEDS": "4", "DDPFIX_SEED": "5"}),
        # A job that asked for an error keeps it.
        ("divergence", "error", {"DDPFIX_DRIFT": "error", "DDPFIX_DRIFT_STEPS": "50"}),
        ("divergence", "50", {"DDPFIX_DRIFT_STEPS": "50"}),
    ],
)
def test_which_of_two_names_counts(name: str, value: str, given: Dict[str, str]) -> None:
    for both in (given, dict(reversed(list(given.items())))):
        keywords = {variable[len("DDPFIX_") :].lower(): text for variable, text in both.items()}
        for found in (reading.read({}, loader.load().patches, both), reading.read(keywords, loader.load().patches, {})):
            assert found[name] == value


def test_a_renamed_option_and_a_renamed_patch_are_answered(capsys: Any) -> None:
    words, _ = cli._split(["plan", "--seeds", "7"])
    assert cli._parser().parse_args(words).seed == "7"
    assert capsys.readouterr() == ("", f"ddpfix: {_renamed('--seeds', 'DDPFIX_SEED')}\n")
    assert cli.main(["explain", "torch.stuck"]) == 0
    out, err = capsys.readouterr()
    assert err == f"ddpfix: {_renamed('torch.stuck', 'torch.hang')}\n" and out.endswith("Fix: torch.hang\n")


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("ddpfix ")])
def test_a_command_or_option_is_no_error(name: str, tmp_path: Path, capsys: Any) -> None:
    _, command, *option = name.split()
    if not option:
        assert cli.main([command, str(tmp_path), "--whatever", "1"]) == 0
        assert capsys.readouterr() == ("", f"ddpfix: {_line(name)}\n")
        return
    for words in ([*option, "value"], option):
        cli._parser().parse_args([command, *([str(tmp_path)] if command == "report" else []), *words])
        assert capsys.readouterr() == ("", f"ddpfix: {_line(name, option[0])}\n")


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("DDPFIX_")])
@pytest.mark.parametrize("command", ["run", "plan", "probe"])
def test_the_option_of_a_setting_is_no_error(name: str, command: str, capsys: Any) -> None:
    option = "--" + name[len("DDPFIX_") :].lower()
    words, _ = cli._split([command, option, "value"])
    cli._parser().parse_args(words)
    assert capsys.readouterr() == ("", f"ddpfix: {_line(name, option)}\n")


def test_a_removed_option_is_not_offered(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        cli.main(["plan", "--exmaple"])
    assert "--example" not in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["report", "--help"])
    assert "example" not in capsys.readouterr().out


def test_plan_and_doctor_show_the_line(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("DDPFIX_EXAMPLE", "1")
    assert cli.main(["plan"]) == 0
    assert _line("DDPFIX_EXAMPLE") in capsys.readouterr().out
    whole = loader.load()
    values, errors = examination.read_settings(whole)
    _, (finding,) = examination.settings_in_force(values, errors)
    assert errors == [] and finding.level == "warning" and finding.cure == KINDS["DDPFIX_EXAMPLE"]


def test_a_job_has_the_line_once_and_is_activated() -> None:
    code = (
        "from ddpfix.settings import gone\n"
        "gone.GONE['DDPFIX_EXAMPLE'] = 'leave it out'\n"
        "import ddpfix, ddpfix.auto\n"
        "assert ddpfix.activate().active and ddpfix.activate().active\n"
    )
    environ = {**os.environ, "DDPFIX_EXAMPLE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stderr.count("DDPFIX_EXAMPLE was removed in 1.1.0: leave it out") == 1
    quiet = {**environ, "DDPFIX_LOG": "off"}
    assert not subprocess.run([sys.executable, "-c", code], env=quiet, capture_output=True, check=True).stderr


def test_the_package_and_the_docs_have_the_lines() -> None:
    for name in [name for name in NAMES if name.startswith("ddpfix.")]:
        with pytest.raises(AttributeError) as caught:
            getattr(ddpfix, name[len("ddpfix.") :])
        assert str(caught.value) == _line(name)
    text = (readme.DOCS / "usage.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` | {gone.GONE[name]} |" in text for name in NAMES if name not in KINDS)


@pytest.mark.parametrize("former", sorted(gone.VALUES))
def test_a_former_value_stands_for_another_one(former: str) -> None:
    variable, _, value = former.partition("=")
    instead, line = gone.VALUES[former]
    assert len(gone.answer(former)) <= 240 and not line.endswith(".")
    found = reading.read({}, loader.load().patches, {variable: value.upper()})
    assert found.values[variable[len("DDPFIX_") :].lower()] == instead
    assert found.gone == [f"{variable}={value.upper()} was removed in 1.1.0: {line}"]
