"""``ddpfix plan``, ``explain`` and the report: what they say, without touching anything."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import pytest

import ddpfix
from ddpfix.cli import explain, plan
from ddpfix.cli import main as cli
from ddpfix.matrix import detect, loader
from ddpfix.patching.report import PatchReport, Report
from ddpfix.settings.reading import SETTINGS
from ddpfix.state import DECISIONS, State

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("DDPFIX")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> Dict[str, Any]:
    """The versions that the plan finds installed."""
    found: Dict[str, Any] = {"torch": "2.13.0", "transformers": "5.23.0", "accelerate": None}
    monkeypatch.setattr(detect, "installed_versions", lambda whole: found)
    return found


def entries(**chosen: object) -> Dict[str, Dict[str, Any]]:
    return {entry["id"]: entry for entry in plan.make(chosen)["patches"]}


def test_every_patch_has_one_entry_with_reason(versions: Dict[str, Any]) -> None:
    found = entries()
    whole = loader.load()
    assert list(found) == list(whole.patches)
    for entry in found.values():
        assert entry["reason"]
        if entry["action"] == "apply":
            assert entry["targets"] in [[str(target) for target in row.targets] for row in whole.rows_of(entry["id"])]
    assert found["accelerate.intent"]["action"] == "absent"
    assert found["torch.probe"]["action"] == "off"


def test_settings_and_where_they_come_from(versions: Dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDPFIX_LAYERDROP", "off")
    found = plan.make({"unused": "find"})["settings"]
    assert found["layerdrop"] == {"value": "off", "from": "DDPFIX_LAYERDROP"}
    assert found["unused"] == {"value": "find", "from": "argument unused"}
    assert found["log"] == {"value": "info", "from": "default"}
    assert list(found) == [setting.name for setting in SETTINGS]
    actions = {name: entry["action"] for name, entry in entries().items()}
    assert (actions["transformers.layerdrop"], actions["transformers.sharded"]) == ("apply", "off")


def test_the_table_says_in_words_what_each_fix_does(
    versions: Dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions["transformers"] = "5.22.1"
    monkeypatch.setenv("DDPFIX_LAYERDROP", "stock")
    plan.show({}, everything=True)
    output = capsys.readouterr().out
    assert re.search(r"transformers 5.22.1 .*apply \(not tested\) .*transformers.checkpointing ", output)
    assert re.search(r"torch 2.13.0 .*apply .*sets find_unused_parameters=True for a model .*torch.flag ", output)
    assert re.search(r"accelerate - .*absent .*accelerate.intent ", output)
    assert "nothing is changed" in output and "funasr is not installed" in " ".join(output.replace("│", " ").split())
    assert "layerdrop = stock (from DDPFIX_LAYERDROP)" in output
    # The short one.
    plan.show({})
    output = capsys.readouterr().out
    assert re.search(r"│ torch 2.13.0 .*sets find_unused_parameters=True for a model .*│ torch.flag ", output)
    assert re.search(r"transformers 5.22.1 .*\(untested\) .*transformers\.", output)
    (off,) = re.findall(r"^off: .*", output, re.MULTILINE)
    assert "transformers.layerdrop" in off and "torch.probe" in off
    (absent,) = re.findall(r"^not installed: .*", output, re.MULTILINE)
    assert "accelerate, funasr, speechbrain" in absent and "funasr." not in output
    assert "nothing is changed now" in output and "layerdrop = stock (from DDPFIX_LAYERDROP)" in output
    assert "--all" in output


def test_every_fix_says_what_it_does_in_few_words_and_every_decision_has_a_style() -> None:
    assert set(plan._STYLES) == set(DECISIONS)
    for patch in loader.load().patches.values():
        assert patch.does[:1].islower() and len(patch.does) <= 100 and patch.does[-1] != ".", patch


def test_a_skipped_patch_says_why_and_how_to_force_it(
    versions: Dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    versions["transformers"] = "6.0.0"
    plan.show({}, as_json=True)
    plan_read = {entry["id"]: entry for entry in json.loads(capsys.readouterr().out)["patches"]}
    entry = plan_read["transformers.intent"]
    assert entry["action"] == "skip" and entry["targets"] == []
    assert "nearest: 5.24.0" in entry["reason"] and "DDPFIX_TRANSFORMERS_INTENT=force" in entry["reason"]
    plan.show({})
    output = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert (
        "transformers.layerdrop" in output and "left out, transformers 6.0.0 was not tested (nearest: 5.24.0)" in output
    )


def test_the_plan_has_a_line_or_two_for_each_fix(versions: Dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """With every toolkit installed, in the width that a pipe gets."""
    versions.update(
        accelerate="1.15.0", funasr="1.4.16", hydra="1.3.2", speechbrain="1.1.2", fastNLP="1.0.1", wenet="3.1.0"
    )
    plan.show({})
    output = capsys.readouterr().out.splitlines()
    applied = [name for name, entry in entries().items() if entry["action"] == "apply"]
    assert len(output) < 1.3 * len(applied) + 15, len(output)
    assert len(applied) > 50 and all(any(f" {name} " in line for line in output) for name in applied)


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.explain("transformers.recording") == 0
    output = capsys.readouterr().out
    assert "use_weighted_layer_sum" in output
    assert "https://github.com/huggingface/transformers/issues/30113" in output
    cured = next(row for row in loader.load().rows_of("transformers.recording") if row.status == "cured")
    assert "not-affected" in output and f"tested: {', '.join(map(str, cured.tested))}" in " ".join(output.split())
    assert "transformers.utils.output_capturing:install_output_capuring_hook" in output
    assert "DDPFIX_TRANSFORMERS_RECORDING=0 switches it off" in output
    explain.explain("torch.flag")
    shown = capsys.readouterr().out
    assert shown.startswith("ddpfix sets find_unused_parameters=True") and shown.endswith("\nFix: torch.flag\n")
    assert "used when DDPFIX_UNUSED is auto or find" in shown.replace("\n", " ")


def test_what_is_misspelt_is_answered_with_what_is_near(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.explain("torch.falg") == 2
    output = capsys.readouterr().err
    assert "no fix is called 'torch.falg'" in output and "lists them; did you mean torch.flag, " in output
    for unlike in ("x", ""):
        assert explain.explain(unlike) == 2
        assert capsys.readouterr().err.endswith("python -m ddpfix plan --all lists them\n")
    # Of an option, and of a command.
    for words, asked in (["plan", "--lyaerdrop", "off"], "mean --layerdrop"), (["doctro"], "mean doctor?"):
        with pytest.raises(SystemExit) as ended:
            cli.main(words)
        assert ended.value.code == 2 and f"did you {asked}" in capsys.readouterr().err


def test_help_has_defaults_and_accepted_values(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("run", "probe", "plan"):
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        shown = " ".join(capsys.readouterr().out.split())
        assert "settings:" in shown and "--layerdrop {sync,off,stock}" in shown
        assert "(default: sync; DDPFIX_LAYERDROP)" in shown and "--hang {off,SECONDS}" in shown


def test_plan_imports_no_toolkit(tmp_path: Path) -> None:
    code = (
        "import sys; from ddpfix.cli import plan; plan.show({}, as_json=True)\n"
        "sys.stderr.write(str([n for n in ('torch', 'transformers', 'accelerate', 'wrapt') if n in sys.modules]))"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, cwd=str(tmp_path), capture_output=True, text=True, check=True
    )
    assert done.stderr == "[]"
    assert [entry["id"] for entry in json.loads(done.stdout)["patches"]] == list(loader.load().patches)


# The report.


def report_of(*states: str, **more: Any) -> Report:
    entries = [
        PatchReport(f"kit.p{number}", "kit", "1.2", state, f"reason {number}; more", **more)
        for number, state in enumerate(states)
    ]
    return Report("9.9", True, {"kit": "1.2"}, {"log": "info"}, entries)


def test_the_summary_counts_and_gives_reasons() -> None:
    found = report_of("applied", "applied", "armed", "skip", "failed", "off", "absent", tested=True)
    assert found.summary() == (
        "ddpfix 9.9: 2 fixes in use for kit 1.2; 1 left out (reason 3); 1 failed (kit.p4: reason 4; more)"
        " (python -m ddpfix plan)"
    )
    found = report_of("applied", "registered", "registered", "armed", tested=True)
    assert found.summary() == "ddpfix 9.9: 3 fixes in use for kit 1.2 (python -m ddpfix plan)"
    assert found.summary(imported=["other"]) == "ddpfix 9.9: 0 fixes in use (python -m ddpfix plan)"
    assert report_of("armed", tested=True).summary() == "ddpfix 9.9: 0 fixes in use (python -m ddpfix plan)"


def test_the_summary_counts_what_was_not_tested_and_what_has_changed() -> None:
    found = report_of("applied", "registered", "armed", tested=False, how="unchanged there")
    found.patches.append(PatchReport("kit.p9", "kit", "1.2", "skip", "kit 1.2 has changed it", False, how="changed"))
    assert found.summary() == (
        "ddpfix 9.9: 2 fixes in use for kit 1.2; 2 not tested with kit 1.2 (unchanged there); 1 left out (changed)"
        " (python -m ddpfix plan)"
    )


def test_a_report_as_json_and_one_patch_of_it() -> None:
    found = report_of("applied", "off", tested=True)
    as_json = json.loads(found.json())
    assert as_json["active"] is True
    assert as_json["patches"][0]["id"] == "kit.p0" and as_json["patches"][0]["tested"] is True
    assert found.patch("kit.p1").state == "off"
    with pytest.raises(KeyError, match=r"kit.p7.*known are kit.p0, kit.p1"):
        found.patch("kit.p7")


# A report in a console or a cell of a notebook: what was applied, what was left, why.


def shown_of(states: Dict[str, State], reason: str = "a reason") -> Report:
    entries = [PatchReport(id, id.partition(".")[0], "1.2", state, reason, True) for id, state in states.items()]
    return Report("9.9", True, {"kit": "1.2"}, {"log": "info"}, entries, ["a note"])


def test_what_was_applied_and_left_is_in_a_few_lines() -> None:
    states = {"kit.a": State.APPLIED, "kit.b": State.ARMED, "kit.c": State.OFF, "kit.d": State.SKIP}
    text = repr(shown_of({**states, "other.a": State.ABSENT, "other.b": State.ABSENT}))
    assert text.splitlines() == [
        "ddpfix 9.9: 1 fix in use for kit 1.2; 1 left out (a reason) (python -m ddpfix plan)",
        "  1 skip: left out: this release was not tested",
        "      kit.d",
        "  1 applied: in place",
        "      kit.a",
        "  1 armed: waits for its target to be imported",
        "      kit.b",
        "  1 off: not asked for",
        "      kit.c",
        "  not installed: other",
        "  a note",
    ]


def test_a_report_is_iterated_over_its_patches() -> None:
    report = shown_of({"kit.a": State.APPLIED, "kit.b": State.OFF})
    assert [each.id for each in report] == ["kit.a", "kit.b"] and list(report) == report.patches
    # A report without patches is true all the same.
    assert Report("1.0.0", False)


def test_a_long_report_fits_into_a_cell() -> None:
    """All fixes of the project, in any state: not more lines than a screen has."""
    ids = [entry.id for entry in real().patches]
    assert len(ids) > 60
    text = repr(shown_of({id: list(State)[number % 8] for number, id in enumerate(ids)}))
    assert len(text.splitlines()) <= 30 and max(map(len, text.splitlines()[1:])) <= 120
    everything = repr(shown_of(dict.fromkeys(ids, State.APPLIED)))
    shown = [word.rstrip(",") for word in everything.split() if word.rstrip(",") in ids]
    assert f"and {len(ids) - len(shown)} more" in everything and len(shown) > 5


def real() -> Report:
    ddpfix.activate(log="off")
    try:
        return ddpfix.report()
    finally:
        ddpfix.deactivate()


def test_a_report_without_an_activation_says_how_to_switch_on() -> None:
    ddpfix.deactivate()
    line = f"ddpfix {ddpfix.__version__} is not active: import ddpfix.auto, or DDPFIX=1"
    assert repr(ddpfix.report()) == line
