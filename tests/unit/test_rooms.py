"""The allowed imports between the parts of ddpfix: the imports of every module are checked against them."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Dict, Iterator, Set

from tests.support.rooms import FILES, IMPORTS, ROOT, floor, imported, inner, ours, private_names, room

# The rooms of the engine, and which others each may import. What stands alone in ddpfix/ is a room of its own.
MAY_KNOW: Dict[str, Set[str]] = {
    "_switch": set(),
    "import_hook": set(),
    "modules": {"import_hook"},
    "system": set(),
    "log": {"system"},
    "unlisted_thread": {"log", "system"},
    "devices": set(),
    "user_code": set(),
    "state": set(),
    "settings": set(),
    "matrix": {"import_hook", "modules", "settings", "state"},
    "patching": {"log", "modules", "state", "user_code"},
    "models": {"log", "patching"},
    "rules": set(),
    "groups": {"devices", "rules", "user_code"},
    "exchange": {"unlisted_thread", "groups", "log", "rules", "system"},
    "monitor": {"unlisted_thread", "devices", "exchange", "groups", "log", "patching", "rules", "system", "user_code"},
    "uneven": {"exchange", "groups", "log", "patching", "system"},
    "layerdrop": {"exchange", "groups", "log", "models", "patching", "user_code"},
    "probing": {"devices", "layerdrop", "log", "models", "rules"},
    "waiting": {"matrix"},
    "engine": {"_switch", "import_hook", "log", "matrix", "modules", "patching", "settings", "state", "waiting"},
    "_boot": {"_switch", "import_hook", "engine"},
    "auto": {"_switch", "engine"},
    "trace": {"unlisted_thread", "log"},
    "cli": {"_switch", "matrix", "monitor", "probing", "rules", "settings", "state", "trace"},
    "__main__": {"cli"},
    # The public names of the package; nothing is imported before one of them is used.
    "__init__": {"engine", "exchange", "layerdrop", "matrix", "models", "probing", "settings"},
    "patches": set(),
}
# What a patch may use of the engine's rooms.
FOR_PATCHES = {
    "unlisted_thread",
    "devices",
    "log",
    "models",
    "modules",
    "patching",
    "groups",
    "exchange",
    "monitor",
    "layerdrop",
    "probing",
    "rules",
    "system",
    "trace",
    "uneven",
    "user_code",
}
# What variables are called, which messages tell.
NAMES = "ddpfix.settings.reading"
# Folders of patches/ that others may import.
SHARED = {"torch", "common"}
TOOLKITS = ("transformers", "funasr", "speechbrain", "fastNLP", "wenet", "accelerate", "lightning")


def test_a_room_imports_only_rooms_that_it_may_know() -> None:
    for name in [name for name in FILES if not name.startswith("ddpfix.patches.")]:
        mine = room(name)
        assert mine in MAY_KNOW, f"{name}: a new room has to be added to the plan"
        for other in ours(name):
            # The package itself has the version, and nothing else.
            if other != "ddpfix" and room(other) != mine:
                assert room(other) in MAY_KNOW[mine], f"{name} imports {other}"


def test_a_patch_knows_neither_the_engine_nor_another_toolkit() -> None:
    for name in [name for name in FILES if name.startswith("ddpfix.patches.")]:
        folder = name.split(".")[2]
        for other in ours(name):
            if other.startswith("ddpfix.patches"):
                there = other.split(".")[2] if other.count(".") > 1 else folder
                assert there == folder or there in SHARED, f"{name} imports {other}"
            elif other != "ddpfix":
                assert other == NAMES or room(other) in FOR_PATCHES, f"{name} imports {other}"


def test_the_engine_imports_no_toolkit() -> None:
    for name in [name for name in FILES if not name.startswith(("ddpfix.patches.", "ddpfix.cli.demo"))]:
        assert not {other.split(".")[0] for other in IMPORTS[name]} & set(TOOLKITS), name


# What ddpfix's keys are made of, and how a store is asked.
STORES = {"PrefixStore", "compare_set", "delete_key", "multi_get"}


def test_only_the_exchange_touches_a_store() -> None:
    for name in [name for name in FILES if room(name) != "exchange"]:
        tree = ast.parse(FILES[name].read_text(encoding="utf-8"))
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not used & STORES, name


def test_a_room_of_ddp_imports_only_rooms_below() -> None:
    """Types are counted: who needs another room to be understood knows it."""
    for name in [name for name in FILES if inner(name)]:
        for other in imported(name, FILES[name], ast.walk):
            there = inner(other)
            if there and there != inner(name):
                assert floor(there) < floor(inner(name)), f"{name} imports {other}"


# The rooms in which private names of torch may stand, and the modules elsewhere that read one subject of torch each.
INTERNALS = ("ddpfix.patches.torch.internals.", "ddpfix.models.internals")
SUBJECTS = {
    "ddpfix.groups.internals": "process groups",
    "ddpfix.monitor.loaders": "loaders",
    "ddpfix.patching.dynamo": "what torch.compile leaves alone",
    "ddpfix.layerdrop.recompute": "storages that are still alive",
    "ddpfix.patches.common.bypass": "calls of a module past its wrapper",
}


# Names with an underscore that are no names of torch's: those of Python, of the toolkits, and of wrapt.
OTHERS = {
    "_SubParsersAction",
    "_actions",
    "_active_collector",
    "_args_from_interpreter_flags",
    "_asdict",
    "_create_parser",
    "_ddpfix",
    "_fields_",
    "_fsdp_kwargs",
    "_initializing",
    "_local",
    "_mask_hidden_states",
    "_pids",
    "_self_parent",
    "_speechbrain_iterator",
    "_speechbrain_recovery_skip_to",
}


def test_private_names_of_torch_stand_in_one_room_or_one_place_a_subject() -> None:
    elsewhere = [name for name in FILES if not name.startswith(INTERNALS)]
    assert {name for name in elsewhere if set(private_names(FILES[name])) - OTHERS} == set(SUBJECTS)


def alone(knows: Dict[str, Set[str]]) -> Set[str]:
    """The modules that import each other in a circle, and those that import one of these."""
    while True:
        free = {name for name, others in knows.items() if not (others - {name}) & set(knows)}
        if not free:
            return set(knows)
        knows = {name: others for name, others in knows.items() if name not in free}


def test_there_is_no_circle() -> None:
    """Not between modules, whether they import each other at the top or later; in the rooms of DDP types count too."""
    # The package's own names are imported when they are first used.
    files = [name for name in FILES if name != "ddpfix.__init__"]
    assert (
        alone({name: {other if other in FILES else f"{other}.__init__" for other in ours(name)} for name in files})
        == set()
    )
    assert alone({name: set(imported(name, FILES[name], ast.walk)) for name in FILES if inner(name)}) == set()


def test_the_walk_sees_imports() -> None:
    """The tests above would pass on files in which nothing is found."""
    assert "ddpfix.import_hook" in ours("ddpfix._boot") and "ddpfix.engine" in ours("ddpfix._boot")
    assert "ddpfix.patches.torch.pipeline.ddp" in ours("ddpfix.patches.torch.unused.finalize")
    assert "ddpfix.layerdrop.everywhere" in ours("ddpfix.patches.common.layerdrop")
    assert sum(map(len, map(ours, FILES))) > 200
    assert sys.version_info >= (3, 8)


# The ladder of certainty in the code (docs/no-harm.md): what no module of the product does but those named here.


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
SOURCES = sorted([*(ROOT / "ddpfix").rglob("*.py"), *(ROOT / "patches").rglob("*.py")])


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
    for file in SOURCES:
        for call in _calls(file):
            if call in (*ENDS, *STARTS, *HOOKS):
                found.setdefault(file.relative_to(ROOT).as_posix(), set()).add(call)
    # A copy in which docs/dev/adding-a-toolkit.md is followed has some of the files.
    assert found == {name: calls for name, calls in ALLOWED.items() if (ROOT / name).exists()}, "docs/no-harm.md"
