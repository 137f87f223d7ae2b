"""docs/messages.md has what the sources log and raise, so that a line of a log can be searched for."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support import messages

PAGE = messages.ROOT / "docs" / "messages.md"


@pytest.mark.parametrize(
    ("line", "folder"),
    [
        ("all ranks skip the same layers of WavLMEncoder (rate 0.1)", "patches/torch"),
        ("rank 1 gave no word within the time limit; see its own message", "ddpfix/ranks/agreement"),
        ("the ranks that waited go on after 7 s", "ddpfix/ranks/hang"),
    ],
)
def test_a_line_of_a_log_is_on_the_page(line: str, folder: str) -> None:
    own = [message for path in messages.files() for message in messages.of_file(path)]
    assert [message for message in own if messages.matches(line, message.text)]
    assert any(messages.matches(line, each) for each in PAGE.read_text(encoding="utf-8").splitlines())


def test_every_file_that_logs_has_messages() -> None:
    """A text that is put together elsewhere has its pieces there; these files hand on what others have made."""
    without = {path for path in messages.files() if not messages.of_file(path) and logs(path)}
    assert {str(path.relative_to(messages.ROOT)) for path in without} == HANDS_ON


def logs(path: Path) -> bool:
    calls = [node.func for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    own = [call for call in calls if isinstance(call, ast.Attribute) and call.attr in messages.LOGGED]
    return any(isinstance(call.value, ast.Name) and call.value.id == "log" for call in own)


# Warnings of the standard library among them, whose text is a name or an attribute.
HANDS_ON = {
    "ddpfix/patching/temporary.py",
    "ddpfix/ranks/store/keys.py",
    "patches/speechbrain/spec_augment.py",
    "patches/torch/data/even_lengths.py",
    "patches/torch/replicas/comparison.py",
}


def test_what_is_put_in_is_not_written_out(tmp_path: Path) -> None:
    file = tmp_path / "said.py"
    file.write_text('NAME = "the flag"\n\n\ndef say(a):\n    log.once(f"{NAME} of {a} is {a + 1}, and stays so")\n')
    (message,) = messages.of_file(file)
    assert message.text == "the flag of … is …, and stays so"
    assert messages.matches("the flag of Net is 3, and stays so (more)", message.text)
    assert not messages.matches("the flag of Net stays so", message.text)
