"""Settings: which source wins, what is accepted, and what an error says."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import islice, product
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

import pytest

import ddpfix
from ddpfix import log
from ddpfix.cli import run
from ddpfix.matrix import loader
from ddpfix.patching.site import Site
from ddpfix.settings import reading
from ddpfix.settings.reading import SETTINGS, Settings, SettingsError, read, switch_name
from ddpfix.uneven import loader as uneven

PATCHES = ["torch.flag", "torch.hang", "torch.finalize", "transformers.layerdrop", "transformers.layerdrop_x"]
ROOT = Path(__file__).parents[2]


def settle(
    arguments: Optional[Mapping[str, object]] = None,
    environ: Optional[Mapping[str, str]] = None,
    pyproject: str = "",
    folder: Optional[Path] = None,
) -> Settings:
    if folder is None:
        return read(arguments or {}, PATCHES, environ or {}, folder=Path("/nonexistent"))
    (folder / "pyproject.toml").write_text(pyproject, encoding="utf-8")
    return read(arguments or {}, PATCHES, environ or {}, folder=folder)


def test_defaults_and_a_number_or_off() -> None:
    found = settle()
    assert dict(found.values) == {
        "unused": "auto",
        "untested": "unchanged",
        "layerdrop": "sync",
        "overrides": "apply",
        "uneven": "auto",
        "memory": "on",
        "cache": "off",
        "seed": "auto",
        "timeout": "60",
        "divergence": "warn",
        "hang": "300",
        "hang_exit": "off",
        "bypass": "auto",
        "trace": "off",
        "log": "info",
    }
    assert found.switches == {} and found.sources == {}
    assert found.seconds() == 60.0 and found.seed() is None
    assert settle().number("cache") is None
    assert settle(environ={"DDPFIX_CACHE": "50"}).number("cache") == 50
    for wrong in ("0", "-1", "2.5", "often"):
        with pytest.raises(SettingsError, match="argument cache=.*expected off, an integer"):
            settle({"cache": wrong})


def test_a_folder_keeps_its_case_and_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "Home"))
    assert settle(environ={"DDPFIX_TRACE": " Traces/A b "})["trace"] == str(tmp_path / "Traces" / "A b")
    assert settle({"trace": tmp_path / "X"})["trace"] == str(tmp_path / "X")
    assert settle({"trace": "./1"})["trace"] == str(tmp_path / "1")
    assert settle({"trace": "~/T"})["trace"] == str(tmp_path / "Home" / "T")
    assert settle(environ={"DDPFIX_TRACE": " OFF "})["trace"] == "off"
    for wrong in ("1", "True", "none", "a\0b"):
        with pytest.raises(SettingsError, match="argument trace=.*expected off, a folder"):
            settle({"trace": wrong})


def test_a_kind_stands_for_the_values_that_cannot_be_listed() -> None:
    assert reading.wanted("trace", "/some/where", ["a folder"])
    assert not reading.wanted("trace", "off", ["a folder"]) and reading.wanted("trace", "off", ["off"])
    assert reading.wanted("unused", "find", ["find"]) and not reading.wanted("unused", "find", ["auto"])


def test_every_default_is_accepted_and_every_variable_is_known() -> None:
    for setting in SETTINGS:
        assert setting.validate(setting.default, "x") == setting.default
        assert settle(environ={setting.variable: setting.default})[setting.name] == setting.default


@pytest.mark.parametrize(("argument", "variable", "table"), list(product([False, True], repeat=3)))
def test_the_order_of_sources(argument: bool, variable: bool, table: bool, tmp_path: Path) -> None:
    found = settle(
        {"unused": "find"} if argument else {},
        {"DDPFIX_UNUSED": "off"} if variable else {},
        '[tool.ddpfix]\nunused = "auto"\nlog = "debug"\n' if table else "",
        tmp_path,
    )
    assert found["unused"] == ("find" if argument else "off" if variable else "auto")
    source = "argument unused" if argument else "DDPFIX_UNUSED" if variable else None
    if source is None and table:
        source = "pyproject.toml [tool.ddpfix] unused"
    assert found.sources.get("unused") == source
    assert found["log"] == ("debug" if table else "info")


@pytest.mark.parametrize(("argument", "variable", "table"), list(product([None, "0", "1", "force"], repeat=3)))
def test_a_switch_that_says_0_in_the_environment_wins(
    argument: Optional[str], variable: Optional[str], table: Optional[str], tmp_path: Path
) -> None:
    found = settle(
        {"torch_flag": argument},
        {"DDPFIX_TORCH_FLAG": variable} if variable else {},
        f'[tool.ddpfix]\n"torch.flag" = "{table}"\n' if table else "",
        tmp_path,
    )
    assert found.switched("torch.flag") == ("0" if variable == "0" else argument or variable or table)
    if variable == "0":
        assert found.sources["torch.flag"] == "DDPFIX_TORCH_FLAG"


@pytest.mark.parametrize("value", [0, False, "0", "off", "false", "FALSE", " Off "])
def test_ways_to_say_0(value: object) -> None:
    for key in ("torch_flag", "torch.flag", "TORCH-UNUSED"):
        assert dict(settle({key: value}).switches) == {"torch.flag": "0"}
    for variable in ("DDPFIX_TORCH_FLAG", "DDPFIX_torch_unused") if isinstance(value, str) else ():
        assert settle({"torch.flag": "force"}, {variable: value}).switched("torch.flag") == "0"  # type: ignore[dict-item]


def test_names_that_begin_alike_are_distinguished() -> None:
    found = settle(environ={"DDPFIX_TRANSFORMERS_LAYERDROP_X": "0", "DDPFIX_LAYERDROP": "stock"})
    assert dict(found.switches) == {"transformers.layerdrop_x": "0"}
    assert found["layerdrop"] == "stock"
    assert switch_name("transformers.layerdrop_x") == "DDPFIX_TRANSFORMERS_LAYERDROP_X"


@pytest.mark.parametrize("word", ["", " ", "\t"])
def test_an_empty_variable_is_not_set(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As DDPFIX itself: a job script says DDPFIX_LOG=$LOG where LOG may be empty."""
    environ = {**{setting.variable: word for setting in SETTINGS}, "DDPFIX_TORCH_FLAG": word, "DDPFIX_XYZZY": word}
    found = settle(environ=environ)
    assert dict(found.values) == dict(settle().values) and not found.switches and not found.sources
    # What is written down is meant: an empty argument is refused.
    with pytest.raises(SettingsError, match="argument log=.*expected debug"):
        settle({"log": word})
    for name in [name for name in os.environ if name.startswith("DDPFIX")]:
        monkeypatch.delenv(name)
    with pytest.raises(SettingsError, match="argument log="):
        run.become(["-c", "pass"], {"log": word})


@pytest.mark.parametrize(
    ("environ", "parts"),
    [
        ({"DDPFIX_UNUSED": "sometimes"}, ["DDPFIX_UNUSED='sometimes'", "expected auto, find, late, static, off"]),
        ({"DDPFIX_UNSUED": "find"}, ["DDPFIX_UNSUED is not a setting (did you mean DDPFIX_UNUSED or "]),
        ({"DDPFIX_LAYER_DROP": "off"}, ["DDPFIX_LAYER_DROP", "did you mean DDPFIX_LAYERDROP?"]),
        ({"DDPFIX_TRANSFORMER_LAYERDROP": "0"}, ["did you mean DDPFIX_TRANSFORMERS_LAYERDROP or "]),
        ({"DDPFIX_TORCH_FLAG": "maybe"}, ["DDPFIX_TORCH_FLAG='maybe'", "expected 0, 1, force"]),
        ({"DDPFIX_XYZZY": "1"}, ["DDPFIX_XYZZY is not a setting (python -m ddpfix plan --help lists them)"]),
        ({"DDPFIX_SEED": "-1"}, ["DDPFIX_SEED='-1'", "expected auto, an integer"]),
        ({"DDPFIX_SEED": "an integer"}, ["DDPFIX_SEED='an integer'"]),
        ({"DDPFIX_SEED": "9" * 5000}, ["DDPFIX_SEED=", "an integer"]),
        ({"DDPFIX_SEED": str(2**63)}, ["DDPFIX_SEED=", "an integer"]),
        ({"DDPFIX_SEED": "1.5"}, ["DDPFIX_SEED='1.5'"]),
        ({"DDPFIX_LATE": "0"}, ["DDPFIX_LATE is not a setting (did you mean DDPFIX_TORCH_FINALIZE"]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_errors_name_the_variable_and_what_is_accepted(environ: Dict[str, str], parts: list) -> None:  # type: ignore[type-arg]
    with pytest.raises(SettingsError) as caught:
        settle(environ=environ)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({"DDPFIX_HAGN": "50"}, "DDPFIX_HAGN is not a setting: it is ignored (did you mean DDPFIX_HANG?)"),
        ({"DDPFIX_HANG": "long"}, "DDPFIX_HANG='long': expected off, seconds (up to a week). 300 is used instead"),
        ({"DDPFIX_TORCH_HANG": "no"}, "DDPFIX_TORCH_HANG='no': expected 0, 1, force. It is ignored"),
        *[({"DDPFIX_TIMEOUT": word}, f"DDPFIX_TIMEOUT='{word}': expected") for word in ("0", "nan", "inf", "x")],
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_typo_in_what_only_watches_switches_nothing_off(environ: Dict[str, str], line: str) -> None:
    found = settle(environ={**environ, "DDPFIX_UNUSED": "find"})
    assert found.gone[0].startswith(line) and len(found.gone) == 1, found.gone
    assert found["unused"] == "find" and (found["hang"], found["timeout"]) == ("300", "60")
    # An argument is read by who has written it.
    with pytest.raises(SettingsError):
        settle({name[len("DDPFIX_") :].lower(): value for name, value in environ.items()})


def test_errors_name_the_argument_and_the_file(tmp_path: Path) -> None:
    for value in ([1], {"x": 1}, 10**5000):
        with pytest.raises(SettingsError, match="argument seed: expected a text or a number"):
            settle({"seed": value})
    with pytest.raises(SettingsError, match=r"argument unsued is not a setting \(did you mean unused or "):
        settle({"unsued": "find"})
    with pytest.raises(
        SettingsError, match=r"pyproject.toml \[tool.ddpfix\] unused='yes'.*auto, find, late, static, off"
    ):
        settle(pyproject='[tool.ddpfix]\nunused = "yes"\n', folder=tmp_path)
    with pytest.raises(SettingsError, match="pyproject.toml: .*line 2"):
        settle(pyproject="[tool.ddpfix]\nunused = \n", folder=tmp_path)
    with pytest.raises(SettingsError, match="must be a table"):
        settle(pyproject="[tool]\nddpfix = 3 # tool.ddpfix\n", folder=tmp_path)


def test_other_files_are_not_ours_to_judge(tmp_path: Path) -> None:
    assert settle(pyproject="this [is not TOML", folder=tmp_path).sources == {}
    (tmp_path / "pyproject.toml").write_bytes(b"\xff\xfe[tool.ddpfix]")
    assert read({}, PATCHES, {}, folder=tmp_path).sources == {}


def test_values_of_toml_types(tmp_path: Path) -> None:
    text = '[tool.ddpfix]\nseed = 7\ntimeout = 2.5\n"transformers.layerdrop" = false\ntorch_unused = true\n'
    found = settle(pyproject=text, folder=tmp_path)
    assert (found.seed(), found.seconds()) == (7, 2.5)
    assert dict(found.switches) == {"transformers.layerdrop": "0", "torch.flag": "1"}


CODE = "from ddpfix.settings import reading; print(reading.read({}, ['torch.flag'])['unused'])"


@pytest.mark.parametrize(("flags", "expected"), [([], "off"), (["-E"], "auto")])
def test_python_E_ignores_the_environment(flags: list, expected: str, tmp_path: Path) -> None:  # type: ignore[type-arg]
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {CODE}"
    environ = {**os.environ, "DDPFIX_UNUSED": "off"}
    command = [sys.executable, *flags, "-c", code]
    done = subprocess.run(command, env=environ, cwd=str(tmp_path), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


# Values that not every toolkit has.


@pytest.mark.parametrize(
    "requested, taken, is_logged",
    [({}, "join", False), ({"uneven": "pad"}, "join", True), ({"uneven": "join"}, "join", False)]
    + [({"uneven": "stop"}, "stop", False)],
)
def test_the_nearest_value_is_taken_and_logged(
    monkeypatch: pytest.MonkeyPatch, requested: Dict[str, Any], taken: str, is_logged: bool
) -> None:
    lines: List[str] = []
    monkeypatch.setattr(log, "info", lines.append)
    site = Site("wenet.uneven", reading.read(requested, [], environ={}), instead={"auto": "join", "pad": "join"})
    assert uneven.policy(site, "WeNet") == taken
    assert lines == (["WeNet does not support uneven=pad: ddpfix uses uneven=join"] if is_logged else [])


@pytest.mark.parametrize(
    ("target", "told"),
    [(3, "3 steps in this epoch, 3 batches are left out"), (5, "5 steps in this epoch, 3 batches are read again")],
)
def test_what_becomes_of_the_batches_that_only_some_ranks_have(target: int, told: str) -> None:
    assert uneven.line([3, 5, 4], target).startswith(f"ranks have 3 to 5 batches: each trains {told}")
    assert list(islice(uneven.Counted(range(3), target), 9)) == [0, 1, 2, 0, 1][:target]


class OneOfThree(uneven.StreamEpoch):
    """A rank with two batches; the other two have three."""

    def __init__(self, stop: bool) -> None:
        super().__init__(range(2), stop, None)
        self.others = [[2, 2]] * 4

    def send(self) -> Any:
        return self.numbers()

    def received(self, pending: Any) -> List[int]:
        return [own + other for own, other in zip(pending, self.others.pop() if self.others else (0, 0))]


@pytest.mark.parametrize(("stop", "batches", "repeated", "left"), [(False, [0, 1, 0], 1, 0), (True, [0, 1], 0, 2)])
def test_batches_that_cannot_be_counted(
    stop: bool, batches: List[int], repeated: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 3)
    epoch = OneOfThree(stop)
    assert list(epoch) == batches and (epoch.repeated, epoch.left) == (repeated, left)


def test_the_matrix_says_which_values_a_toolkit_does_not_have() -> None:
    """Each value of the setting is a toolkit's own, or stands for one that is; off is never replaced."""
    patches = [patch for patch in loader.load().patches.values() if patch.setting == "uneven"]
    assert {patch.id: dict(patch.instead) for patch in patches} == {
        "funasr.uneven": {"auto": "pad", "join": "pad"},
        "speechbrain.uneven": {"auto": "pad", "join": "pad"},
        "torch.uneven": {"join": "pad"},
        "wenet.uneven": {"auto": "join", "pad": "join"},
    }
    (setting,) = [setting for setting in reading.SETTINGS if setting.name == "uneven"]
    # Loops of a user's own are touched only where that was asked for.
    unasked = {patch.id for patch in patches if "auto" not in patch.when}
    assert unasked == {"torch.uneven"}
    assert all({*patch.when, "auto"} == set(setting.values) - {"off"} for patch in patches)


def test_help_shows_each_setting_with_its_default() -> None:
    shown = " ".join(str(ddpfix.activate.__doc__).split())
    assert all(f'{each.name}="{each.default}"' in shown for each in SETTINGS)
