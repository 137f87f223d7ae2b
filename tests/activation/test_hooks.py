"""The import hook is invisible to tools, and works whatever the import system does. Each test is a fresh process."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import Dict

import pytest

from tests.activation.support import Place, stub_torch

SETUP = """
import sys, importlib
from ddpfix import import_hook
seen = []
hook = import_hook.install(frozenset(("stub", "spaces", "broken", "zipped", "zip_more")))
hook.wake, hook.wanted, hook.imported = None, lambda name: True, lambda module: seen.append(module.__name__)
"""


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packages to be imported: a plain one, a namespace, one whose import fails at first, and two modules in a zip."""
    import zipfile

    folder = tmp_path_factory.mktemp("stubs")
    files = {
        "stub/__init__.py": "from stub import part\nVALUE = 1\n",
        "stub/part.py": "def function(x):\n    'Text.'\n    return x + 1\n\n\nclass Kind:\n    pass\n",
        "stub/late.py": "import stub.part\n",
        "stub/data.txt": "data",
        "stub/run.py": "import sys\nprint(__name__, __spec__.name, sys.argv[1:])\n",
        "spaces/inside.py": "VALUE = 2\n",
        "broken.py": "import os\nif not os.environ.get('WHOLE'):\n    raise ValueError('the module itself')\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    with zipfile.ZipFile(folder / "archive.zip", "w") as archive:
        archive.writestr("zipped/__init__.py", "")
        archive.writestr("zipped/one.py", "ONE = 1\n")
        archive.writestr("zip_more.py", "TWO = 2\n")
    return folder


# A program that looks at modules of the stubs, by what it shows.
PROGRAMS: Dict[str, str] = {
    "each module is reported once and when it is complete": """
        hook.imported = lambda module: seen.append((module.__name__, bool({"VALUE", "Kind"} & set(vars(module)))))
        import stub, stub.part, stub
        assert seen == [("stub.part", True), ("stub", True)], seen
    """,
    "spec and loader are the original ones": """
        import stub.part, pickle, copy
        from importlib.machinery import ModuleSpec, SourceFileLoader
        spec = stub.part.__spec__
        assert type(spec) is ModuleSpec and type(spec.loader) is SourceFileLoader
        assert spec.loader is stub.part.__loader__ and sorted(vars(spec.loader)) == ["name", "path"]
        assert spec.loader == SourceFileLoader("stub.part", spec.origin)
        assert pickle.loads(pickle.dumps(stub.part.function)) is stub.part.function
        copy.copy(spec)
    """,
    "inspect pkgutil and resources": """
        import inspect, pkgutil, stub, linecache
        assert "return x + 1" in inspect.getsource(stub.part.function)
        assert inspect.getsource(stub.part).startswith("def function")
        assert inspect.getmodule(stub.part.Kind) is stub.part
        names = [m.name for m in pkgutil.walk_packages(stub.__path__, "stub.")]
        assert names == ["stub.late", "stub.part", "stub.run"], names
        assert pkgutil.get_data("stub", "data.txt") == b"data"
        assert hook in list(pkgutil.iter_importers())
        linecache.checkcache()
        if sys.version_info >= (3, 9):
            from importlib.resources import files
            assert files("stub").joinpath("data.txt").read_text() == "data"
        importlib.invalidate_caches()
        from importlib import metadata
        assert metadata.version("torch") == "0.1.0"
    """,
    "runpy inside a process": """
        import runpy, io, contextlib
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            runpy.run_module("stub.run", run_name="__main__", alter_sys=True)
            runpy.run_path("stub/part.py")
        assert out.getvalue().startswith("__main__ stub.run"), out.getvalue()
        assert seen == ["stub.part", "stub"] and "stub.run" not in sys.modules, seen
    """,
    "looking for a module changes nothing": """
        from importlib.util import find_spec, module_from_spec
        first = find_spec("stub")
        for _ in range(3):
            assert find_spec("stub").origin == first.origin
        assert find_spec("stub.nowhere") is None
        assert find_spec("stub.late") is not None and "stub.late" not in sys.modules
        assert seen == ["stub.part", "stub"]
        import stub.late
        assert seen == ["stub.part", "stub", "stub.late"]
        again = module_from_spec(find_spec("stub.late"))
        again.__spec__.loader.exec_module(again)
        assert again is not stub.late
    """,
    "reload": """
        import stub.part
        before = stub.part.function
        again = importlib.reload(stub.part)
        assert again is stub.part and stub.part.function is not before and stub.part.function(1) == 2
        assert seen == ["stub.part", "stub", "stub.part"]
        del seen[:]
        import stub.late
        del sys.modules["stub.late"]
        import stub.late
        assert seen == ["stub.late", "stub.late"], seen
    """,
    "a namespace package": """
        import spaces, spaces.inside
        assert spaces.inside.VALUE == 2 and "spaces.inside" in seen and list(spaces.__path__)
        assert getattr(spaces, "__file__", None) is None
    """,
    "a module that fails by itself": """
        import os, traceback
        try:
            import broken
        except ValueError:
            text = traceback.format_exc()
        assert "the module itself" in text and "ddpfix" not in text.splitlines()[-1]
        assert "broken" not in sys.modules and seen == []
        os.environ["WHOLE"] = "1"
        import broken
        assert seen == ["broken"]
        try:
            import stub.nowhere
        except ModuleNotFoundError as error:
            assert error.name == "stub.nowhere"
    """,
    # One before ours that calls all finders again (as ddtrace and wrapt do), one after it, and one of the old kind.
    "other finders": """
        import wrapt
        from importlib.util import find_spec
        order, names = [], []
        class Before:
            def find_spec(self, name, path=None, target=None):
                names.append(name)
                if names.count(name) < 3 and name == "stub.late":
                    return find_spec(name)
        class Old:
            def find_module(self, name, path=None):
                return None
        wrapt.when_imported("stub.part")(lambda module: order.append("wrapt"))
        sys.meta_path.insert(0, Before())
        sys.meta_path.append(Old())
        import stub.late
        assert names.count("stub") == 1, names
        assert order == ["wrapt"] and seen == ["stub.part", "stub", "stub.late"], (order, seen)
    """,
    "wrapt behind us": """
        import wrapt
        order = []
        wrapt.when_imported("stub.part")(lambda module: order.append("wrapt"))
        sys.meta_path.remove(hook)
        sys.meta_path.insert(0, hook)
        import stub.part
        assert order == ["wrapt"] and "stub.part" in seen and stub.part.function(1) == 2
    """,
    "loaders that cannot be hooked": """
        from importlib.machinery import BuiltinImporter, ModuleSpec
        class Slots:
            __slots__ = ()
            def create_module(self, spec):
                return None
            def exec_module(self, module):
                module.VALUE = 3
        class Finder:
            def find_spec(self, name, path=None, target=None):
                return ModuleSpec(name, Slots()) if name == "broken" else None
        sys.meta_path.insert(1, Finder())
        import broken
        assert broken.VALUE == 3 and seen == []
        hook.watched = {"_struct", "zlib", "_statistics"}
        before = vars(BuiltinImporter).copy()
        for name in sorted(hook.watched & set(sys.builtin_module_names)):
            sys.modules.pop(name, None)
            importlib.import_module(name)
        assert vars(BuiltinImporter) == before
    """,
    "lazy loading": """
        from importlib.util import LazyLoader, find_spec, module_from_spec
        spec = find_spec("stub")
        spec.loader = LazyLoader(spec.loader)
        module = sys.modules["stub"] = module_from_spec(spec)
        spec.loader.exec_module(module)
        assert seen == []
        assert module.VALUE == 1 and seen == ["stub.part", "stub"]
    """,
    # The thread that comes second must not import its toolkit before the first one has woken the engine.
    "threads wait until the patches are armed": """
        import threading, time
        wanted, hook.wanted = hook.wanted, None
        woken = []
        def wake():
            woken.append(1)
            time.sleep(0.3)
            hook.wanted = wanted
        hook.wake = wake
        names = ["stub.part", "broken", "spaces.inside"]
        import os
        os.environ["WHOLE"] = "1"
        # One thread calls the finder directly, as a tool may do; import statements are serialized by the import lock.
        def look():
            spec = hook.find_spec("stub")
            assert "exec_module" in vars(spec.loader), "the hook is missing"
            looked.append(spec)
        looked = []
        threads = [threading.Thread(target=importlib.import_module, args=(name,)) for name in names]
        threads.append(threading.Thread(target=look))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {"broken", "stub", "stub.part", "spaces.inside"} <= set(seen) and woken == [1] and looked
    """,
    # A zip file has one loader for all its modules, and that of Python 3.8 and 3.9 knows the older protocol only.
    "modules in a zip file": """
        from importlib.util import find_spec
        find_spec("zip_more"), find_spec("zip_more"), find_spec("zipped")
        class Between:
            # Another module is looked for and imported between the look-up of a module and its execution.
            def find_spec(self, name, path=None, target=None):
                spec = hook.find_spec(name, path, target)
                if name == "zipped":
                    import zip_more
                return spec
        sys.meta_path.insert(0, Between())
        import zipped.one, zip_more, inspect
        assert (zipped.one.ONE, zip_more.TWO) == (1, 2)
        assert seen == ["zip_more", "zipped", "zipped.one"], seen
        assert inspect.getsource(zip_more) == "TWO = 2\\n"
    """,
    "installing twice and removing": """
        assert import_hook.install(frozenset()) is hook and sys.meta_path.count(hook) == 1
        sys.meta_path.remove(hook)
        assert import_hook.install(frozenset()) is hook and sys.meta_path[0] is hook
        import_hook.remove()
        import_hook.remove()
        assert hook not in sys.meta_path
        import stub
        assert seen == []
    """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_import_system_works_as_ever(name: str, installed: Place, stubs: Path) -> None:
    """Code after the set-up fails by an assertion, and prints nothing."""
    path = os.pathsep.join([str(stubs), str(stubs / "archive.zip")])
    done = installed.run("-c", SETUP + textwrap.dedent(PROGRAMS[name]), cwd=stubs, PYTHONPATH=path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done.stderr


def test_runpy_of_a_watched_module(installed: Place, stubs: Path) -> None:
    """``python -m stub.run``: the code runs as __main__, which is not imported, but its package is."""
    unpatched = installed.run("-m", "torch.tool", "a")
    assert unpatched.stdout == "__main__ torch.tool ['a']\n"
    done = installed.run("-m", "torch.tool", "a", DDPFIX="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, unpatched.stdout, "")


def test_undo_takes_the_finder_away(installed: Place) -> None:
    count = "print(len(sys.meta_path), ddpfix.report().active)\n"
    code = f"import sys, torch, ddpfix\n{count}ddpfix.deactivate()\n{count}"
    first, active, second, inactive = installed.run("-c", code, DDPFIX="1").stdout.split()
    assert (int(first) - int(second), active, inactive) == (1, "True", "False")


def test_a_file_of_the_user_that_is_called_like_a_toolkit(installed: Place, tmp_path: Path) -> None:
    """torch.py beside the script shadows the real one; it is what the user gets without ddpfix, and with it."""
    (tmp_path / "transformers.py").write_text("VALUE = 5\n", encoding="utf-8")
    (tmp_path / "main.py").write_text("import transformers, torch; print(transformers.VALUE)\n", encoding="utf-8")
    done = installed.run("main.py", cwd=tmp_path, DDPFIX="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "5\n", "")


def test_a_toolkit_whose_metadata_is_missing(installed: Place, unpatched: Place, tmp_path: Path) -> None:
    folder = stub_torch(tmp_path)
    for path in folder.glob("*.dist-info/*"):
        path.unlink()
    done = installed.run(
        "-c", "import torch, ddpfix; print(ddpfix.report().active)", PYTHONPATH=str(folder), DDPFIX="1"
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
