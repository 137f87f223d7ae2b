"""The ladder of certainty in the code (docs/no-harm.md): what no module of the product does but those named here."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Dict, Iterator, Set

from tests.support.ranks import ROOT

# What a part of the product must not call, and the files that may, with the reason.
ENDS = ("os._exit", "os.abort", "os.kill", "os.killpg", "signal.raise_signal", "sys.exit")
STARTS = ("threading.Thread", "Thread")
HOOKS = ("register_forward_pre_hook", "register_forward_hook", "register_full_backward_hook", "register_buffer")
ALLOWED: Dict[str, Set[str]] = {
    # DDPFIX_HANG_EXIT, the one setting that ends a process.
    "ddpfix/monitor/hang.py": {"os._exit"},
    # Commands: their own processes, and those that they have started.
    "ddpfix/__main__.py": {"sys.exit"},
    "ddpfix/cli/demo/job.py": {"os.kill"},
    # Signal 0 asks whether a process is there.
    "ddpfix/cli/report/logged.py": {"os.kill"},
    "patches/fastnlp/cause.py": {"os.kill"},
    # `ddpfix probe` ends the process that it has started for three steps.
    "patches/torch/probe.py": {"os._exit"},
    # A user's own training script, in which ddpfix takes no part.
    "ddpfix/cli/demo/script/train.py": {"register_forward_hook", "register_forward_pre_hook"},
    # Taken off at the end of the call in which they are put on.
    "patches/funasr/accumulation.py": {"register_forward_pre_hook"},
    "patches/funasr/validation.py": {"register_forward_hook"},
    # A module under fully_shard cannot be saved or copied whole, in plain torch neither.
    "patches/torch/sharded/fsdp.py": {"register_forward_pre_hook", "register_forward_hook"},
}
FILES = sorted([*(ROOT / "ddpfix").rglob("*.py"), *(ROOT / "patches").rglob("*.py")])


def _calls(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            text = ast.unparse(node.func)
            method = text.rpartition(".")[2]
            yield method if method in HOOKS else text
        elif isinstance(node, ast.ClassDef):
            yield from map(ast.unparse, node.bases)


def test_ends_no_process_lists_no_thread_and_hooks_no_module() -> None:
    """Also, each exception is still needed."""
    found: Dict[str, Set[str]] = {}
    for file in FILES:
        for call in _calls(file):
            if call in (*ENDS, *STARTS, *HOOKS):
                found.setdefault(file.relative_to(ROOT).as_posix(), set()).add(call)
    # A copy in which docs/dev/adding-a-toolkit.md is followed has some of the files.
    assert found == {name: calls for name, calls in ALLOWED.items() if (ROOT / name).exists()}, "docs/no-harm.md"
