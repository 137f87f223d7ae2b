"""Editable installs by pip and by uv: the code of the checkout runs, and uninstalling takes everything away."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Callable, List

import pytest

from tests.activation import support
from tests.activation.support import ROOT, Place
from tests.packaging.test_wheel import NO_PATCHES, after_uninstall, nothing_left, use

pytestmark = pytest.mark.packaging
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


def check(place: Place, folder: Path) -> None:
    code = "import ddpfix, ddpfix.patches.torch as p; print(ddpfix.__file__, p.__file__)"
    assert support.succeed([place.python, "-c", code], place.env()).split() == [
        str(ROOT / "ddpfix" / "__init__.py"),
        str(ROOT / "patches" / "torch" / "__init__.py"),
    ]
    assert (place.packages / "ddpfix.pth").read_bytes() == (ROOT / "ddpfix" / "ddpfix.pth").read_bytes()
    use(place, folder)


# README's test command begins with one.
@pytest.mark.sampled(inside=False)
@pytest.mark.parametrize("command", [support.with_uv, support.with_pip], ids=["uv", "pip"])
def test_install_use_and_uninstall(command: Command, place: Place, tmp_path: Path) -> None:
    install = command(place, "install")
    before = place.files()
    support.succeed([*install, "--no-deps", "--no-build-isolation", "-e", ROOT], place.env())
    check(place, tmp_path)
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
