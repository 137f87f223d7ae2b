"""Words of the command line in a shell: what bash is given after each beginning of a line."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

from tests.support import ranks

BIN = Path(sys.executable).parent
SHELL = shutil.which("bash")
# As bash asks when the tab key is pressed behind the line.
ASKED = """
eval "$(register-python-argcomplete ddpfix)"
COMP_LINE="$1" COMP_POINT=${#COMP_LINE} COMP_TYPE=9
COMP_WORDS=($COMP_LINE)
[[ "$COMP_LINE" == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_python_argcomplete ddpfix
printf '%s\\n' "${COMPREPLY[@]}"
"""


def answers(line: str) -> List[str]:
    environ = ranks.environment()
    environ["PATH"] = f"{BIN}:{environ['PATH']}"
    command = [str(SHELL), "-c", ASKED, "bash", line]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return sorted(word.strip() for word in done.stdout.splitlines() if word.strip())


@pytest.mark.skipif(
    SHELL is None or not (BIN / "register-python-argcomplete").exists() or not (BIN / "ddpfix").exists(),
    reason="no bash, no argcomplete, or the command is not installed",
)
@pytest.mark.parametrize(
    "line, expected",
    [
        ("ddpfix pl", ["plan"]),
        ("ddpfix explain transformers.lay", ["transformers.layerdrop"]),
        ("ddpfix run --unused ", ["auto", "find", "late", "off", "static"]),
        ("ddpfix plan --diverg", ["--divergence"]),
    ],
)
def test_bash_is_given_the_words(line: str, expected: List[str]) -> None:
    assert answers(line) == expected
