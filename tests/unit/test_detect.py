"""Toolkits without metadata: the contents of their package show the version, and are not searched too early."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence

import pytest

from ddpfix import engine
from ddpfix.matrix import detect, loader, model
from ddpfix.matrix.model import Mark

MARKS = (
    Mark("2.0", files=("utils/new.py",), no_files=("old",), words=(("core.py", "class Core"),)),
    Mark("1.5", files=("utils",), words=(("core.py", "class Core"),), no_words=(("core.py", "join"),)),
    Mark("1.0", words=(("core.py", "class Core"),)),
)
CORE = "class Core:\n    pass\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path


def package(home: Path, files: Dict[str, str], name: str = "ddpfix_kit") -> Path:
    for file, text in files.items():
        path = home / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return home / name


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({"core.py": CORE, "utils/new.py": ""}, "2.0"),
        ({"core.py": CORE, "utils/new.py": "", "old/x.py": ""}, "1.5"),
        ({"core.py": CORE, "utils/x.py": ""}, "1.5"),
        ({"core.py": CORE + "# join", "utils/x.py": ""}, "1.0"),
        ({"core.py": CORE}, "1.0"),
        ({"core.py": "nothing"}, detect.UNRECOGNISED),
        ({"utils/new.py": ""}, detect.UNRECOGNISED),
    ],
)
@pytest.mark.parametrize("namespace", [False, True])
def test_the_first_mark_that_holds_decides(files: Dict[str, str], version: str, namespace: bool, home: Path) -> None:
    init = {} if namespace else {"__init__.py": "raise RuntimeError('imported')"}
    package(home, {**files, **init})
    assert detect.recognise("ddpfix_kit", MARKS) == version
    assert "ddpfix_kit" not in sys.modules


def test_a_package_that_is_not_there_is_none_and_a_single_module_unknown(home: Path) -> None:
    assert detect.recognise("ddpfix_kit", MARKS) is None
    importlib.invalidate_caches()
    (home / "ddpfix_kit.py").write_text(CORE)
    assert detect.recognise("ddpfix_kit", MARKS) == detect.UNRECOGNISED


def test_all_parts_of_a_namespace_are_looked_at(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clone called like its package lies in the working directory, and PYTHONPATH leads to the package itself."""
    package(home / "clone", {"README.md": "", "ddpfix_kit/core.py": CORE})
    monkeypatch.syspath_prepend(str(home / "clone" / "ddpfix_kit"))
    monkeypatch.syspath_prepend(str(home / "clone"))
    assert detect.recognise("ddpfix_kit", MARKS) == "1.0"


CHILD = """
import sys
from ddpfix import engine
from ddpfix.matrix import detect, loader
from ddpfix.matrix.model import Mark, Matrix, Patch, Row, Target
from ddpfix.matrix.ranges import Range
recognised = []
original = detect.recognise
def recognise(toolkit, found):
    version = original(toolkit, found)
    recognised.append(version)
    return version
detect.recognise = recognise
patch = Patch("ddpfix_kit.fix", "ddpfix_kit", "none:fix", None, (), "problem", ())
targets = (Target("ddpfix_kit.utils.core", "Core.run"),)
row = Row("ddpfix_kit.fix", Range("1", "2"), "cured", targets, (), "why")
mark = Mark("1.5", words=(("utils/core.py", "class Core"),))
toolkits = {"torch": "torch", "ddpfix_kit": "packaging"}
whole = Matrix(toolkits, {"ddpfix_kit.fix": patch}, (row,), {}, {"ddpfix_kit": (mark,)})
loader.load = lambda: whole
def fix(site, module, owner):
    site.wrap_hot(owner, "run", lambda original: lambda self: original(self) + 1)
engine._code = lambda name: fix
engine.switch_on()
"""


def child(code: str, path: Sequence[Path]) -> List[str]:
    here = Path(model.__file__).parent.parent
    # Without DDPFIX: where ddpfix is installed, its way in would be there before the stand-ins are.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DDPFIX")}
    environ["PYTHONPATH"] = os.pathsep.join(map(str, [*path, here]))
    done = subprocess.run(
        [sys.executable, "-c", CHILD + code], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()


CLASS = "class Core:\n    def run(self):\n        return 1\n"


@pytest.mark.parametrize("init", [(), ("__init__.py",), ("__init__.py", "utils/__init__.py")])
def test_a_namespace_is_patched_when_its_leaf_is_imported(init: Sequence[str], tmp_path: Path) -> None:
    """The metadata under the toolkit's name is not read (here it would say that of packaging)."""
    package(tmp_path, {"utils/core.py": CLASS, **dict.fromkeys(init, "")})
    lines = child(
        "print(recognised)\nfrom ddpfix_kit.utils.core import Core\nprint(Core().run(), recognised)\n"
        "found = engine.report()\nprint(found.toolkits['ddpfix_kit'], found.patches[0].state, len(recognised))\n"
        "engine.deactivate()\nprint(Core().run())\n",
        [tmp_path],
    )
    assert lines == ["[]", "2 ['1.5']", "1.5 applied 1", "1"]


OTHERS = [
    # What the package imports itself waits for its end.
    (
        {"utils/core.py": CLASS, "__init__.py": "from .utils.core import Core\nfirst = Core().run()\n"},
        "import ddpfix_kit\nprint(ddpfix_kit.first, ddpfix_kit.Core().run())\n",
        ["1 2"],
    ),
    # What was imported before is recognised.
    (
        {"utils/core.py": CLASS},
        "engine.deactivate()\nfrom ddpfix_kit.utils.core import Core\nprint(Core().run())\n"
        "engine.activate()\nprint(Core().run())\n",
        ["1", "2"],
    ),
    # An unknown package is left alone with one line.
    (
        {"utils/core.py": CLASS.replace("Core", "Other")},
        "import ddpfix_kit.utils.core, ddpfix_kit.utils\nfound = engine.report()\n"
        "print(found.toolkits['ddpfix_kit'], found.patches[0].state)\n",
        ["ddpfix: the package ddpfix_kit is not a known release: it is left unchanged", "unrecognised skip"],
    ),
]


@pytest.mark.parametrize(("files", "code", "lines"), OTHERS, ids=["imports itself", "before", "unknown"])
def test_a_package_that_is(files: Dict[str, str], code: str, lines: List[str], tmp_path: Path) -> None:
    package(tmp_path, files)
    assert child(code, [tmp_path]) == lines


def test_a_path_that_is_extended_later_counts(tmp_path: Path) -> None:
    package(tmp_path, {"utils/core.py": CLASS})
    lines = child(
        "try:\n    import ddpfix_kit.utils.core\nexcept ImportError:\n    print('none', recognised)\n"
        "print(engine.report().toolkits['ddpfix_kit'])\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\nimport ddpfix_kit.utils.core as core\nprint(core.Core().run())\n",
        [],
    )
    assert lines == ["none [None]", "None", "2"]


def test_marks_are_not_checked_without_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise AssertionError("recognised")

    monkeypatch.setattr(detect, "recognise", fail)
    made = engine.Engine({})
    assert made.unseen == set(loader.load().marks)
    assert not made.wanted("torch.nothing") and made.wanted("torch")


def provided(home: Path, name: str, distribution: str, version: str) -> None:
    package(home, {"__init__.py": "raise RuntimeError('imported')"}, name)
    info = home / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (info / "top_level.txt").write_text(name + "\n")
    (info / "RECORD").write_text(f"{name}/__init__.py,,\n")


def test_a_fork_under_another_name_is_named(home: Path) -> None:
    provided(home, "ddpfix_kit", "kit-of-somebody-else", "3.2.1")
    assert installed() == f"{detect.UNRECOGNISED} ({home / 'ddpfix_kit' / '__init__.py'})"


def installed() -> Optional[str]:
    return detect.installed_versions(model.Matrix({"ddpfix_kit": "ddpfix-kit"}, {}, ()))["ddpfix_kit"]


def test_a_folder_with_the_name_of_a_toolkit_is_named_and_one_of_data_is_nothing(home: Path) -> None:
    where = package(home, {"data.txt": ""})
    assert installed() is None
    package(home, {"__init__.py": ""})
    importlib.invalidate_caches()
    assert installed() == f"{detect.UNRECOGNISED} ({where / '__init__.py'})"
