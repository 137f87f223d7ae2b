"""The ladder of certainty in the code (docs/no-harm.md): what no module of the product does but those named here."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Dict, Iterator, List, Set, Tuple

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


def _calls(file: Path) -> Iterator[Tuple[str, int]]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            text = ast.unparse(node.func)
            method = text.rpartition(".")[2]
            yield method if method in HOOKS else text, node.lineno
        elif isinstance(node, ast.ClassDef):
            for base in node.bases:
                yield ast.unparse(base), node.lineno


def test_ends_no_process_lists_no_thread_and_hooks_no_module() -> None:
    for file in FILES:
        name = str(file.relative_to(ROOT)).replace("\\", "/")
        allowed = ALLOWED.get(name, set())
        found: List[str] = [
            f"{name}:{line}: {call}"
            for call, line in _calls(file)
            if call in (*ENDS, *STARTS, *HOOKS) and call not in allowed
        ]
        assert not found, "docs/no-harm.md says why not: " + "; ".join(found)


def test_every_exception_is_still_needed() -> None:
    calls = {name: {call for call, _ in _calls(ROOT / name)} for name in ALLOWED if (ROOT / name).exists()}
    unused = {name: words - calls.get(name, set()) for name, words in ALLOWED.items()}
    assert not {name: words for name, words in unused.items() if words}
