"""The keywords of ``ddpfix.activate`` are known to type checkers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Dict

import pytest

import ddpfix
from ddpfix.matrix import loader, settings
from tests.support import arguments


def test_the_file_is_up_to_date() -> None:
    assert arguments.FILE.read_text(encoding="utf-8") == arguments.text(), "run: python -m tests.support.arguments"


def test_every_value_that_is_accepted_has_a_type() -> None:
    patches = loader.load().patches
    for each in settings.SETTINGS:
        for value in each.values:
            assert settings.read({each.name: value}, patches, {}, Path("/nowhere"))[each.name] == value
            assert f'"{value}"' in arguments._kind(each) or each.check is not None


def test_help_shows_each_setting_with_its_default() -> None:
    shown = " ".join(str(ddpfix.activate.__doc__).split())
    assert all(f'{each.name}="{each.default}"' in shown for each in settings.SETTINGS)


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Dict[int, str]:
    """What mypy says of the lines of a program; the cells of the matrix have no mypy."""
    pytest.importorskip("mypy")
    file = tmp_path_factory.mktemp("typed") / "program.py"
    file.write_text(
        'import ddpfix\n\nddpfix.activate(layerdrop="off", torch_flag=0, hang=50, trace="out")\n'
        'ddpfix.activate(layerdrp="off")\n'
        'ddpfix.activate(layerdrop="of")\n'
    )
    words = [sys.executable, "-m", "mypy", "--no-error-summary", "--follow-imports=silent", str(file)]
    done = subprocess.run(words, cwd=str(arguments.FILE.parents[2]), capture_output=True, text=True, timeout=300)
    found = (line.split(":", 3) for line in done.stdout.splitlines() if ": error: " in line)
    return {int(number): text for _, number, _, text in found}


def test_a_wrong_keyword_or_value_fails_the_type_check(wrong: Dict[int, str]) -> None:
    assert sorted(wrong) == [4, 5], wrong
    assert 'Unexpected keyword argument "layerdrp"' in wrong[4] and "incompatible type" in wrong[5]
