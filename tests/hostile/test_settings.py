"""Settings that nobody should write: a SettingsError and nothing else, and values that their readers can use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ddpfix.matrix import loader
from ddpfix.settings import reading
from ddpfix.settings.reading import SETTINGS, SettingsError
from tests.hostile import values

PATCHES = list(loader.load().patches)
VARIABLES = [setting.variable for setting in SETTINGS] + [reading.switch_name(patch) for patch in PATCHES]


def use(found: reading.Settings) -> None:
    """As the readers of the settings do."""
    for setting in SETTINGS:
        value = found[setting.name]
        if setting.kind == "an integer" and value not in setting.values:
            assert found.number(setting.name) is not None and int(value) < 2**63
        if setting.kind == "seconds (up to a week)" and value not in setting.values:
            assert 0 < float(value) < 86400 * 7
        if setting.name == "trace" and value != "off":
            assert "\0" not in value and os.path.isabs(value)
    assert all(found.switched(patch) in (None, "0", "1", "force") for patch in PATCHES)


def read(environ: Any = None, arguments: Any = None, folder: Path = Path()) -> None:
    try:
        use(reading.read(arguments or {}, PATCHES, environ or {}, folder))
    except SettingsError as error:
        # It is one line of a readable length, whatever the value is.
        assert len(str(error)) < 20_000


@pytest.mark.parametrize("variable", VARIABLES)
def test_each_variable_with_each_trick(variable: str) -> None:
    for trick in values.TRICKS:
        read({variable: trick})
        read(arguments={variable[len(reading.PREFIX) :].lower(): trick})


@values.FEW
@given(name=values.texts, value=values.texts)
@example(name="9" * 100_000, value="1")
def test_names_and_values_of_any_kind(name: str, value: str) -> None:
    read({reading.PREFIX + name: value})


@values.FEW
@given(name=st.sampled_from([each.name for each in SETTINGS]), value=values.values)
def test_arguments_of_any_kind(name: str, value: Any) -> None:
    read(arguments={name: value})


@pytest.mark.parametrize(
    "text",
    [
        "tool = 3 # tool.ddpfix",
        "[[tool]]\nx = 'tool.ddpfix'",
        "tool.ddpfix = 3",
        "[tool.ddpfix]\nseed = 0x" + "f" * 20_000,
        "[tool.ddpfix]\nseed = " + "9" * 20_000,
        "[tool.ddpfix]\nseed = " + "[" * 5_000,
        "[tool.ddpfix]\nseed = nan\n",
        "[tool.ddpfix]\nseed = [1]\n",
        "[tool.ddpfix.seed]\nx = 1\n",
        "[tool.ddpfix]\nunused = 1979-05-27\n",
        '[tool.ddpfix]\n"\\u001b[31m" = 1\n',
        "[tool.ddpfix",
        "[tool.ddpfix]\n" + "a." * 3_000 + "a = 1\n",
    ],
    ids=lambda text: text[:40],
)
def test_a_table_of_any_kind(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    read(folder=tmp_path)


@pytest.mark.parametrize("kind", [*values.ODD, "bytes"])
def test_a_pyproject_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "pyproject.toml"
    if kind == "bytes":
        file.write_bytes(b"[tool.ddpfix]\n\xff\xfe")
    else:
        values.put_odd(file, kind)
    use(reading.read({}, PATCHES))
