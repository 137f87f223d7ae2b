"""Errors that pass a wrapper of ddpfix have the traceback that they have in plain torch, caught or not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest

from ddpfix import user_code
from ddpfix.patching import tracebacks, wrapped
from tests.support import ranks

FAILING = """
import torch
from torch import distributed, nn
distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
model(torch.ones(2, 5))
"""


@pytest.mark.ranks
@pytest.mark.sampled(inside=False, cells=True)
def test_what_is_printed_and_torchruns_summary_have_no_frame_of_ddpfix(tmp_path: Path) -> None:
    _, output = ranks.script(FAILING, tmp_path, DDPFIX="1")
    printed, _, summary = output.partition("Root Cause")
    assert "mat1 and mat2" in printed and "mat1 and mat2" in summary
    own = str(Path(user_code.OWN[-1]))
    assert own not in summary
    assert sys.version_info < (3, 11) or own not in printed
    assert own in ranks.script(FAILING, tmp_path, DDPFIX="1", DDPFIX_LOG="debug")[1]


def frames(error: BaseException) -> List[str]:
    trace, found = error.__traceback__, []
    while trace is not None:
        found.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    return found


@pytest.mark.parametrize(
    ("line", "error", "kept"),
    [
        ("return {}['typo']", KeyError, ["called", "layer"]),
        # On purpose.
        ("raise RuntimeError('ddpfix: no')", RuntimeError, ["called"] if sys.version_info < (3, 11) else []),
    ],
)
def test_an_error_of_ddpfix_keeps_its_frames_where_nobody_expects_it(line: str, error: Any, kept: List[str]) -> None:
    code = compile(f"def layer(*_):\n    {line}\n", user_code.OWN[-1] + "stage.py", "exec")
    space: Dict[str, Any] = {}
    exec(code, space)
    with pytest.raises(error) as found:
        wrapped.layer(len, space["layer"], sys)()
    assert frames(found.value)[1:] == kept
    assert error is RuntimeError or "stage.py" in tracebacks.text(found.value)
