"""Patches that raise and targets that changed: undone, reported in one line, and the import that was hooked succeeds.

Each test runs a copy of ddpfix with a small toolkit ``kit``, its patches and its matrix, in a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest

ROOT = Path(__file__).parents[2]

KIT = """\
def one(x):
    return ["one", x]


def two(x):
    return ["two", x]


class Thing:
    def method(self, x):
        return ["method", x]


ORIGINALS = {"one": one, "two": two, "method": vars(Thing)["method"]}
"""

PATCHES = """\
from ddpfix.patching.site import PatchError

LEFT = []


def _ours(wrapped, instance, args, kwargs):
    return ["ours", *wrapped(*args, **kwargs)]


def good(site, module, owner):
    site.wrap(module, "two", _ours)


def half(site, module, owner):
    LEFT.append("state")
    site.at_undo(LEFT.clear)
    site.wrap(module, "one", _ours)
    site.wrap_hot(module.Thing, "method", lambda original: lambda self, x: original(self, x))
    raise RuntimeError("boom")


def refuses(site, module, owner):
    site.wrap(module, "one", _ours)
    raise PatchError("the release looks odd")


def first_then_raises(site, module, owner):
    if module.__name__ == "kit.late":
        raise RuntimeError("boom in the second")
    site.wrap(module, "one", _ours)


def builtin(site, module, owner):
    site.wrap(module, "one", _ours)
    site.replace(dict, "get", None)


def one(site, module, owner):
    site.wrap(module, "one", _ours)


def method(site, module, owner):
    site.wrap(owner, "method", _ours)
"""

HEAD = """\
schema: 2
toolkits:
  torch: torch
  kit: kit
patches:
"""
TESTED = 'tested:\n  kit:\n    versions: ["1.0"]\n'

# Prints what the process found, as JSON.
SCRIPT = """\
import json, sys
import ddpfix.auto
import kit
{more}
import ddpfix
from ddpfix import engine
unpatched = lambda: {{
    "one": kit.one is kit.ORIGINALS["one"],
    "two": kit.two is kit.ORIGINALS["two"],
    "method": vars(kit.Thing)["method"] is kit.ORIGINALS["method"],
}}
found = {{
    "unpatched": unpatched(),
    "states": {{patch.id: patch.state for patch in ddpfix.report().patches}},
    "reasons": {{patch.id: patch.reason for patch in ddpfix.report().patches}},
    "summary": ddpfix.report().summary(),
    "facts": engine.current().facts(),
    "left": list(sys.modules["ddpfix.patches.kit.fixes"].LEFT) if "ddpfix.patches.kit.fixes" in sys.modules else None,
}}
found["undo"] = ddpfix.deactivate()
found["after"] = unpatched()
print(json.dumps(found))
"""


class Bench:
    """A copy of ddpfix with a toolkit ``kit`` of a given version."""

    def __init__(self, folder: Path, kit: str = KIT, version: str = "1.0", fixes: str = PATCHES) -> None:
        self.folder = folder
        self.entries = ""
        shutil.copytree(str(ROOT / "ddpfix"), str(folder / "ddpfix"), ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "patches" / "kit").mkdir(parents=True)
        (folder / "patches" / "__init__.py").write_text("")
        (folder / "patches" / "kit" / "__init__.py").write_text("")
        (folder / "patches" / "kit" / "fixes.py").write_text(fixes)
        (folder / "kit").mkdir()
        (folder / "kit" / "__init__.py").write_text(kit)
        (folder / "kit" / "late.py").write_text("")
        metadata = folder / "kit-0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kit\nVersion: {version}\n")

    def patch(self, function: str, *targets: str) -> Bench:
        listed = "".join(f"          - {target}\n" for target in targets or ("kit:one",))
        self.entries += (
            f"  kit.{function}:\n    toolkit: kit\n    code: kit.fixes:{function}\n    problem: p\n    evidence: [e]\n"
            f'    rows:\n      - from: "1"\n        to: "2"\n        targets:\n{listed}        why: w\n'
        )
        return self

    def python(self, code: str, **environ: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DDPFIX")}
        kept.update(environ, PYTHONPATH=str(self.folder))
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=kept, cwd=str(self.folder), capture_output=True, text=True)

    def write(self) -> None:
        (self.folder / "compat_matrix.yaml").write_text(HEAD + self.entries + TESTED)
        compiled = "from pathlib import Path; from ddpfix.matrix.compiling.write import write; write(Path())"
        done = self.python(compiled)
        assert done.returncode == 0, done.stderr

    def run(self, more: str = "", **environ: str) -> Result:
        self.write()
        done = self.python(SCRIPT.format(more=more), **environ)
        assert done.returncode == 0, done.stderr
        return Result(json.loads(done.stdout), done.stderr.splitlines())


class Result:
    def __init__(self, found: Dict[str, Any], lines: List[str]) -> None:
        self.found, self.lines = found, lines

    def untouched(self, *but: str) -> bool:
        return all(is_original != (name in but) for name, is_original in self.found["unpatched"].items())

    def given_back(self) -> bool:
        return all(self.found["after"].values()) and self.found["undo"] == []


def check_failure(result: Result, patch: str, *reasons: str, patched: Optional[str] = "two") -> None:
    """One patch failed and left nothing, one line says so, the other one is applied, and undo leaves nothing."""
    assert result.untouched(*([patched] if patched else []))
    assert result.found["states"][patch] == "failed" and result.found["left"] in ([], None)
    assert all(state == "applied" for name, state in result.found["states"].items() if name != patch)
    (line,) = result.lines
    variable = "DDPFIX_" + patch.upper().replace(".", "_")
    assert line.startswith(f"ddpfix: {patch} could not be applied and kit")
    assert line.endswith(f"{variable}=0 silences this.")
    for reason in reasons:
        assert reason in line and reason in result.found["reasons"][patch]
    assert patch in result.found["summary"] and "1 failed" in result.found["summary"]
    assert result.found["facts"][patch] == "failed"
    assert result.given_back()


def test_a_target_may_have_a_function_of_its_own(tmp_path: Path) -> None:
    """The others have the patch's; both are one patch, which is undone as a whole."""
    result = Bench(tmp_path).patch("one", "kit:one", '{at: "kit:Thing.method", call: method}').run()
    assert result.untouched("one", "method") and result.lines == []
    assert result.found["states"] == {"kit.one": "applied"} and result.given_back()


# What goes wrong: the patches, each with its targets, which of them fails, and what is said of it.
SIGNATURE = '{at: "kit:Thing.method", expects: [self, x]}'
CHANGED = KIT.replace("def method(self, x):", "def method(self, hidden, *, mask=None):").replace('["method", x]', "[]")
GONE = "no longer exists"
FAILURES: Dict[str, Tuple[List[Tuple[str, ...]], str, str]] = {
    "it raises": ([("half",), ("good",)], "kit.half", "RuntimeError('boom')"),
    "it raises after another one": ([("good",), ("half",)], "kit.half", "RuntimeError('boom')"),
    "it refuses": ([("refuses",), ("good",)], "kit.refuses", "kit:one: the release looks odd"),
    "a function of one target refuses": (
        [("one", "kit:one", '{at: "kit:two", call: refuses}'), ("good",)],
        "kit.one",
        "kit:two: the release looks odd",
    ),
    "a target cannot be set": ([("builtin",), ("good",)], "kit.builtin", "TypeError"),
    "a target vanished": ([("one", "kit:missing"), ("good",)], "kit.one", f"kit:missing: missing {GONE}"),
    "its class vanished": ([("one", "kit:Gone.method"), ("good",)], "kit.one", f"kit:Gone.method: Gone.method {GONE}"),
    "a method vanished": ([("one", "kit:Thing.gone"), ("good",)], "kit.one", f"kit:Thing.gone: Thing.gone {GONE}"),
    "a signature changed": (
        [("method", SIGNATURE), ("good",)],
        "kit.method",
        "Thing.method no longer takes x (has self, hidden, mask)",
    ),
}


@pytest.mark.parametrize("what", FAILURES)
def test_a_patch_that_fails_is_undone_and_the_others_are_applied(tmp_path: Path, what: str) -> None:
    patches, failing, reason = FAILURES[what]
    bench = Bench(tmp_path, CHANGED if what == "a signature changed" else KIT)
    for each in patches:
        bench.patch(*each)
    check_failure(bench.run(), failing, reason)


def test_a_signature_as_it_is_expected(tmp_path: Path) -> None:
    assert Bench(tmp_path).patch("method", SIGNATURE).run().found["states"] == {"kit.method": "applied"}


def test_a_patch_that_raises_at_its_second_target_is_undone_at_the_first(tmp_path: Path) -> None:
    bench = Bench(tmp_path).patch("first_then_raises", "kit:one", "kit.late:*").patch("good")
    result = bench.run("assert kit.one(1)[0] == 'ours'\nimport kit.late\nassert kit.one(1)[0] == 'one'")
    check_failure(result, "kit.first_then_raises", "kit.late:*", "boom in the second")


def test_a_module_that_vanished_is_waited_for(tmp_path: Path) -> None:
    result = Bench(tmp_path).patch("one", "kit.missing:one").patch("good").run()
    assert result.found["states"] == {"kit.one": "armed", "kit.good": "applied"} and result.lines == []
    assert result.given_back()


@pytest.mark.parametrize(
    ("line", "reason"),
    [("from kit import moved_elsewhere", "ImportError"), ("this is no Python", "SyntaxError")],
)
def test_a_patch_file_that_cannot_be_imported(tmp_path: Path, line: str, reason: str) -> None:
    bench = Bench(tmp_path, fixes=f"{PATCHES}{line}\n").patch("one")
    check_failure(bench.run(), "kit.one", reason, patched=None)


def test_the_variable_silences_it_and_rank_0_alone_logs_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path).patch("half").patch("good")
    result, other = bench.run(DDPFIX_KIT_HALF="0"), bench.run(RANK="1")
    assert result.lines == other.lines == [] and result.untouched("two")
    assert result.found["states"] == {"kit.half": "off", "kit.good": "applied"}
    assert other.found["states"]["kit.half"] == "failed"


def test_an_unknown_version_is_left_alone_and_can_be_forced(tmp_path: Path) -> None:
    bench = Bench(tmp_path, version="2.5").patch("one")
    result = bench.run()
    assert result.untouched() and result.found["states"] == {"kit.one": "skip"}
    assert "(kit 2.5 was not tested (nearest: 1.0): left unchanged)" in result.found["summary"]
    forced = bench.run(DDPFIX_KIT_ONE="force")
    assert forced.untouched("one") and "1 not tested with kit 2.5 (forced)" in forced.found["summary"]
    assert forced.given_back()


def test_a_toolkit_that_fails_by_itself_fails_as_without_us(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "import flag_for_tests\n" + KIT).patch("one")
    bench.write()
    code = (
        "import ddpfix.auto, sys, types\n"
        "try:\n    import kit\nexcept ModuleNotFoundError as error:\n    print(error)\n"
        "print('kit' in sys.modules)\n"
        "sys.modules['flag_for_tests'] = types.ModuleType('flag_for_tests')\n"
        "import kit\n"
        "print(kit.one(1))\n"
    )
    done = bench.python(code)
    assert done.stdout.splitlines() == ["No module named 'flag_for_tests'", "False", "['ours', 'one', 1]"], done.stderr
    assert done.stderr == ""


TWICE = """\
import sys
from importlib import import_module

for _ in range(2):
    # What FunASR does with its submodules: an import that is tried again after the first one was thrown away.
    sys.modules.pop("kit.late", None)
    import_module("kit.late")
ORIGINALS = {}
one = two = None
class Thing:
    method = None

ORIGINALS = {"one": one, "two": two, "method": vars(Thing)["method"]}
"""


def test_a_module_that_is_imported_twice_during_the_first_import_is_patched_as_it_is(tmp_path: Path) -> None:
    bench = Bench(tmp_path, kit=TWICE).patch("one", "kit.late:one")
    (tmp_path / "kit" / "late.py").write_text("def one(x):\n    return ['one', x]\n")
    result = bench.run(more="import kit.late\nassert kit.late.one(1) == ['ours', 'one', 1]")
    assert result.found["states"] == {"kit.one": "applied"} and result.lines == []


def test_what_was_replaced_after_us_is_reported(tmp_path: Path) -> None:
    bench = Bench(tmp_path).patch("one").patch("method", "kit:Thing.method")
    more = (
        "from ddpfix import engine as e\n"
        "assert e.current().verify() == []\n"
        "ours, original, other = kit.one, kit.ORIGINALS['one'], type('Thing', (), {'__module__': 'kit'})\n"
        "kit.one, kit.Thing, thing = original, other, kit.Thing\n"
        "assert e.current().verify() == ['kit.method is no longer in place at Thing.method',"
        " 'kit.one is no longer in place at kit.one']\n"
        "kit.one, kit.Thing = ours, thing\n"
    )
    assert bench.run(more=more).given_back()
