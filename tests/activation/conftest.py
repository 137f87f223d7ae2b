"""Session fixtures that the tests of activation and packaging share: the wheel, its requirements, and environments."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.activation import support
from tests.activation.support import Place
from tests.activation.ways import WAYS, Way, make


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    return make(request.param, request)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    return support.build("wheel", support.ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def requirements(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what ddpfix needs besides torch, for the running interpreter."""
    target = tmp_path_factory.mktemp("requirements")
    helper = support.new_place(tmp_path_factory.mktemp("helper"))
    support.succeed([*support.with_pip(helper, "install"), "--target", target, *support.REQUIREMENTS])
    return target


@pytest.fixture(scope="session")
def torch_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return support.stub_torch(tmp_path_factory.mktemp("stub"))


@pytest.fixture(scope="session")
def unpatched(tmp_path_factory: pytest.TempPathFactory, requirements: Path, torch_folder: Path) -> Place:
    """An environment with a stub torch and without ddpfix."""
    place = support.new_place(tmp_path_factory.mktemp("unpatched"))
    place.link(requirements, torch_folder)
    return place


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path, requirements: Path, torch_folder: Path) -> Place:
    """An environment with a stub torch in which the wheel is installed."""
    place = support.new_place(tmp_path_factory.mktemp("installed"))
    support.install_wheel(place, wheel)
    place.link(requirements, torch_folder)
    return place


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Place:
    """An environment with the installed wheel that borrows torch and accelerate from the running one."""
    place = support.new_place(tmp_path_factory.mktemp("real"))
    support.install_wheel(place, wheel)
    spec = find_spec("torch")
    assert spec is not None and spec.origin is not None
    place.link(Path(spec.origin).parent.parent)
    _script(place, "torchrun", "torch.distributed.run")
    _script(place, "accelerate", "accelerate.commands.accelerate_cli")
    return place


def _script(place: Place, name: str, module: str) -> None:
    """A console script as an installer would write it."""
    path = place.bin / name
    path.write_text(f"#!{place.python}\nimport sys\nfrom {module} import main\nsys.exit(main())\n", encoding="utf-8")
    path.chmod(0o755)
