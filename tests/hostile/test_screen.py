"""The command line with words of any kind, and what it prints of versions, paths and names that came from elsewhere."""

from __future__ import annotations

import io
from typing import List

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from ddpfix import _switch
from ddpfix.cli import observe, run
from ddpfix.cli.doctor import screen
from ddpfix.matrix import detect, loader
from tests.hostile import values
from tests.hostile.values import called

TRICK = "\x1b]0;title\x07\x9b31m[red]x[/red] [/] \u202e"
OPTIONS = "--all --json --from --against --inside -o -m -c -- - 1.0 funasr==1 . nan"
SETTINGS = "--unused --trace --seed --timeout --log"
WORDS = st.one_of(st.sampled_from(f"{OPTIONS} {SETTINGS}".split()), values.texts)
COMMANDS = st.sampled_from(["run", "probe", "plan", "explain", "report", "x"])


@settings(values.FEW, max_examples=40)
@given(name=COMMANDS, words=st.lists(WORDS, max_size=4))
@example(name="explain", words=[TRICK])
@example(name="report", words=["a\0b"])
@example(name="report", words=[TRICK])
@example(name="report", words=["\udcff"])
@example(name="plan", words=["--trace", "\0"])
@example(name="probe", words=["--steps", "9" * 5000, "x.py"])
@example(name="probe", words=["--steps", "²", "x.py"])
def test_words_of_any_kind(
    tmp_path_factory: pytest.TempPathFactory, harmless: pytest.MonkeyPatch, name: str, words: List[str]
) -> None:
    harmless.chdir(tmp_path_factory.getbasetemp())
    code, _, err = called([name, *words])
    assert code in (0, 1, 2), err
    assert not values.commands(err)


@pytest.fixture
def harmless(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nothing is started, and no registry is asked."""
    monkeypatch.setattr(run, "become", lambda words, chosen: 0)
    monkeypatch.setattr(observe, "_call", lambda words, environ, as_json: 1)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    return monkeypatch


@pytest.mark.parametrize("trick", [TRICK, f"unrecognised ({TRICK})", "[/]", "1.0\n\x1b[2J"])
def test_versions_that_a_package_claims(monkeypatch: pytest.MonkeyPatch, trick: str) -> None:
    toolkits = loader.load().toolkits
    monkeypatch.setattr(detect, "installed_versions", lambda *rest: dict.fromkeys(toolkits, trick))
    for words in (["plan"], ["plan", "--all"]):
        code, out, _ = called(words)
        assert code == 0 and not values.commands(out)
        assert "\\x1b" in out or "\x1b" not in trick
    assert called(["plan", "--json"])[0] == 0


def test_what_the_doctor_shows() -> None:
    printed = io.StringIO()
    finding = [{"level": TRICK, "text": TRICK, "cure": TRICK}]
    console = Console(file=printed, width=200)
    console.print(screen.problems(finding))
    console.print(screen.facts([(TRICK, TRICK)]))
    assert not values.commands(printed.getvalue())
    assert printed.getvalue().count("[red]x[/red] [/]") == 5


def test_texts_of_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = loader.load()
    patch = whole.patches["torch.fsdp"]._replace(problem=TRICK, evidence=(TRICK,), also=(TRICK,))
    monkeypatch.setattr(loader, "load", lambda: whole._replace(patches={patch.id: patch}))
    code, out, _ = called(["explain", patch.id])
    assert code == 0 and not values.commands(out) and out.count("[red]x[/red] [/]") == 3


def test_a_line_of_ours(capfd: pytest.CaptureFixture[str]) -> None:
    _switch.say(f"a\nb{TRICK}\ud800")
    line = capfd.readouterr().err
    assert line.startswith("ddpfix: a b\\x1b]0;title") and line.count("\n") == 1 and not values.commands(line)
