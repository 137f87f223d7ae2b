"""What is in the wheel and the sdist, and what an installation of them does and leaves behind."""

from __future__ import annotations

import json
import tarfile
import zipfile
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path
from typing import Callable, List

import pytest

from ddpfix import __version__
from tests.activation import support
from tests.activation.support import ROOT, Place
from tests.activation.ways import PROBE

pytestmark = pytest.mark.packaging
PYTHONS = support.interpreters()


def names(wheel: Path) -> List[str]:
    return sorted(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_holds_what_it_should(wheel: Path) -> None:
    found = names(wheel)
    sources = [path for path in (ROOT / "patches").rglob("*.py") if "__pycache__" not in path.parts]
    assert {f"ddpfix/patches/{path.relative_to(ROOT / 'patches').as_posix()}" for path in sources} <= set(found)
    wanted = {"compat_matrix.json", "py.typed", "_boot.py", "_switch.py", "matrix/loader.py", "_site/sitecustomize.py"}
    assert {"ddpfix.pth", *(f"ddpfix/{name}" for name in wanted)} <= set(found)
    assert not {"ddpfix/patches.py", "ddpfix/ddpfix.pth"} & set(found)
    assert not [name for name in found if "compiling" in name or name.endswith(".yaml")]
    assert {name.partition("/")[0] for name in found} == {"ddpfix", "ddpfix.pth", f"ddpfix-{__version__}.dist-info"}
    assert not [name for name in found if "__pycache__" in name or name.endswith(".pyc")]
    with zipfile.ZipFile(wheel) as archive:
        for name, source in (("ddpfix.pth", "ddpfix/ddpfix.pth"), ("ddpfix/compat_matrix.json",) * 2):
            assert archive.read(name) == (ROOT / source).read_bytes()
        # A .pth file is read line by line, and a second line would be a folder for the path.
        assert archive.read("ddpfix.pth").count(b"\n") == 1


def test_the_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = Parser().parsestr(archive.read(f"ddpfix-{__version__}.dist-info/METADATA").decode())
        entry_points = archive.read(f"ddpfix-{__version__}.dist-info/entry_points.txt").decode()
    lines = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert {line.split(";")[0].rstrip(" 0123456789.>=").lower() for line in lines} == {
        "torch",
        "packaging",
        "rich",
        "tomli",
    }
    assert metadata["Requires-Python"] == ">=3.8" and metadata["License-Expression"] == "Apache-2.0"
    assert "ddpfix = ddpfix.cli.main:main" in entry_points


def test_the_sdist_gives_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(support.build("sdist", ROOT, tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path)
    source = tmp_path / f"ddpfix-{__version__}"
    for name in ("compat_matrix.yaml", "patches", "tests", "README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml"):
        assert (source / name).exists(), name
    again = support.build("wheel", source, tmp_path / "again")
    assert names(again) == names(wheel)


USE = "import torch, ddpfix, sys; print(ddpfix.report().active, [m for m in sys.modules if m == 'patches'])"
NO_PATCHES = (
    "import sys\ntry:\n    import patches\nexcept ImportError:\n    sys.exit(0)\nsys.exit('it can be imported')"
)


# Both ends of the range, as far as they are on this machine.
SAMPLE = {support.VERSIONS[0], [each for each in support.VERSIONS if each in PYTHONS][-1]}


@pytest.mark.parametrize(
    "version", [pytest.param(each, marks=pytest.mark.sampled(inside=each in SAMPLE)) for each in support.VERSIONS]
)
def test_install_use_and_uninstall(version: str, wheel: Path, tmp_path: Path, torch_folder: Path) -> None:
    """A user's whole life with ddpfix, on each Python, with the real requirements and a stub torch."""
    if version not in PYTHONS:
        pytest.skip(f"NOT TRIED: CPython {version} is not on this machine (TEST_PYTHONS can name its path)")
    place = support.new_place(tmp_path / "place", PYTHONS[version])
    support.succeed([*support.with_pip(place, "install"), *support.REQUIREMENTS])
    place.link(torch_folder)
    before = place.files()
    support.succeed([*support.with_uv(place, "install"), "--no-deps", wheel])
    use(place, tmp_path)
    support.succeed([*support.with_uv(place, "uninstall"), "ddpfix"])
    assert nothing_left(place, before) == []
    after_uninstall(place)


def nothing_left(place: Place, before: List[str]) -> List[str]:
    """What an uninstallation has left, byte code of other packages apart."""
    new = set(place.files()) - set(before)
    tops = ("patches", "compat_matrix.yaml", "tests")
    return sorted(name for name in new if "ddpfix" in name or Path(name).parts[0] in tops)


def use(place: Place, folder: Path) -> None:
    """Every way in, as the user of an installation has them; byte code is written, as usual."""
    program = folder / "program.py"
    program.write_text(PROBE, encoding="utf-8")
    plan = json.loads(support.succeed([place.bin / "ddpfix", "plan", "--json"], place.env(), folder))
    assert plan["toolkits"]["torch"] == "0.1.0"
    # One of them waits for a setting of its own.
    assert {entry["action"] for entry in plan["patches"] if entry["toolkit"] == "torch"} == {"skip", "off"}
    assert f"ddpfix {__version__}" in support.succeed([place.python, "-m", "ddpfix", "plan"], place.env(), folder)
    for words in ([str(program)], ["sh", "-c", "python program.py"]):
        assert json.loads(support.succeed([place.python, "-m", "ddpfix", "run", *words], place.env(), folder))["active"]
    assert json.loads(support.succeed([place.bin / "ddpfix", "run", program], place.env(), folder))["active"]
    done = place.run("-c", USE, DDPFIX="1")
    assert (done.stdout, done.stderr) == ("True []\n", "")
    done = place.run("-c", "import ddpfix.auto\n" + USE)
    assert (done.stdout, done.stderr) == ("True []\n", "")
    stock = place.run("-OW", "ignore", program, "a", cwd=folder)
    ours = place.run("-OW", "ignore", "-m", "ddpfix", "run", program, "a", cwd=folder)
    assert json.loads(ours.stdout)["world"] == json.loads(stock.stdout)["world"] and ours.stderr == ""
    assert json.loads(stock.stdout)["ours"] == []
    support.succeed([place.python, "-c", NO_PATCHES], place.env())
    support.succeed([place.python, "-c", "import ddpfix.patches.torch"], place.env())


def after_uninstall(place: Place) -> None:
    for code in ("import torch", "import importlib.util as u; assert u.find_spec('ddpfix') is None"):
        done = place.run("-c", code, DDPFIX="1")
        assert (done.returncode, done.stderr) == (0, "")
    assert not (place.bin / "ddpfix").exists()


# Editable installs by pip and by uv: the code of the checkout runs, and uninstalling takes everything away.


Command = Callable[[Place, str], List[str]]


@pytest.fixture
def place(tmp_path: Path, requirements: Path, torch_folder: Path) -> Place:
    """A fresh environment that finds hatchling where the running one has it."""
    place = support.new_place(tmp_path / "place")
    spec = find_spec("hatchling")
    assert spec is not None and spec.origin is not None
    place.link(requirements, torch_folder, without_ddpfix(Path(spec.origin).parent.parent, tmp_path / "hatchling"))
    return place


def without_ddpfix(packages: Path, folder: Path) -> Path:
    """The same packages, without what an editable install of ddpfix itself left among them."""
    folder.mkdir()
    for entry in packages.iterdir():
        if "ddpfix" not in entry.name:
            (folder / entry.name).symlink_to(entry)
    return folder


# README's test command begins with one.
@pytest.mark.sampled(inside=False)
@pytest.mark.parametrize("command", [support.with_uv, support.with_pip], ids=["uv", "pip"])
def test_an_editable_install_use_and_uninstall(command: Command, place: Place, tmp_path: Path) -> None:
    install = command(place, "install")
    before = place.files()
    support.succeed([*install, "--no-deps", "--no-build-isolation", "-e", ROOT], place.env())
    code = "import ddpfix, ddpfix.patches.torch as p; print(ddpfix.__file__, p.__file__)"
    assert support.succeed([place.python, "-c", code], place.env()).split() == [
        str(ROOT / "ddpfix" / "__init__.py"),
        str(ROOT / "patches" / "torch" / "__init__.py"),
    ]
    assert (place.packages / "ddpfix.pth").read_bytes() == (ROOT / "ddpfix" / "ddpfix.pth").read_bytes()
    use(place, tmp_path)
    support.succeed([*command(place, "uninstall"), "ddpfix"], place.env())
    assert nothing_left(place, before) == []
    after_uninstall(place)


def test_the_checkout_without_any_install(unpatched: Place, tmp_path: Path) -> None:
    """``python -m ddpfix`` in the folder of the checkout; nothing is written to the environment."""
    before = unpatched.files()
    program = tmp_path / "program.py"
    program.write_text("import torch, ddpfix; print(ddpfix.report().active)", encoding="utf-8")
    assert support.succeed([unpatched.python, "-m", "ddpfix", "run", program], unpatched.env(), ROOT) == "True\n"
    assert "nothing is changed" in support.succeed([unpatched.python, "-m", "ddpfix", "plan"], unpatched.env(), ROOT)
    support.succeed([unpatched.python, "-c", NO_PATCHES], unpatched.env(), ROOT)
    assert nothing_left(unpatched, before) == []
