"""Places to start real interpreters in: fresh, with the wheel or without, beside a stub torch or the real one."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Callable, Dict, List, Mapping, Optional, Sequence

from tests.support import ranks

ROOT = Path(__file__).resolve().parent.parent.parent
REQUIREMENTS = ("wrapt>=1.14", "packaging>=21", "rich>=10", "tomli>=1.1; python_version < '3.11'")
VERSIONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15")

Finished = subprocess.CompletedProcess


def clean(**more: Optional[str]) -> Dict[str, str]:
    """This process's environment without the variables that steer Python or ddpfix; the value None removes one."""
    steering = ("DDPFIX", "PYTHON", "VIRTUAL_ENV", "COV_", "PYTEST", "UV_PYTHON", "RANK", "WORLD_SIZE", "LOCAL_RANK")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(steering)}
    environ["OMP_NUM_THREADS"] = "1"
    for name, value in more.items():
        environ.pop(name, None)
        if value is not None:
            environ[name] = value
    return environ


@lru_cache(maxsize=None)
def empty_folder() -> Path:
    """An empty folder to start programs in: in that of the checkout, ddpfix can be imported without an install."""
    folder = Path(tempfile.mkdtemp(prefix="ddpfix-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def start(
    words: Sequence[object],
    env: Optional[Mapping[str, str]] = None,
    cwd: Optional[Path] = None,
    stdin: str = "",
    timeout: float = 240,
    before: Callable[[], None] = ranks.foreground,
) -> Finished[str]:
    """Run a command to its end, with its output as text; ``before`` is called in the child, before the command."""
    return subprocess.run(
        [str(word) for word in words],
        env=clean() if env is None else dict(env),
        cwd=cwd or empty_folder(),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        preexec_fn=before,
    )


def succeed(words: Sequence[object], env: Optional[Mapping[str, str]] = None, cwd: Optional[Path] = None) -> str:
    """The output of a command that has to succeed."""
    done = start(words, env, cwd)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def one_line(done: Finished[str], *words: str) -> str:
    """The only line that was printed, which is ddpfix's and has these words."""
    (line,) = done.stderr.splitlines()
    assert line.startswith("ddpfix: ") and len(line) > 30 and all(word in line for word in words), line
    return line


@dataclass(frozen=True)
class Place:
    """A virtual environment."""

    folder: Path

    @property
    def bin(self) -> Path:
        return self.folder / ("Scripts" if os.name == "nt" else "bin")

    @property
    def python(self) -> Path:
        return self.bin / "python"

    @property
    def packages(self) -> Path:
        return next(self.folder.glob("lib/python*/site-packages"), self.folder / "Lib" / "site-packages")

    def env(self, **more: Optional[str]) -> Dict[str, str]:
        """A clean environment in which this place's programs are found first."""
        path = os.pathsep.join([str(self.bin), os.environ.get("PATH", os.defpath)])
        return clean(**{"PATH": path, **more})

    def link(self, *folders: Path) -> None:
        """Make the packages in other folders importable here, without running their .pth files."""
        lines = "".join(f"{folder}\n" for folder in folders)
        (self.packages / "linked_by_tests.pth").write_text(lines, encoding="utf-8")

    def files(self) -> List[str]:
        """All files and folders of site-packages, relative to it."""
        return sorted(str(path.relative_to(self.packages)) for path in self.packages.rglob("*"))

    def run(self, *words: object, cwd: Optional[Path] = None, stdin: str = "", **more: Optional[str]) -> Finished[str]:
        """Start this place's interpreter; keywords are environment variables."""
        return start([self.python, *words], self.env(**more), cwd, stdin)


def new_place(folder: Path, python: object = sys.executable) -> Place:
    """A fresh and empty virtual environment."""
    succeed([python, "-m", "venv", "--without-pip", folder])
    return Place(folder)


def uv() -> Optional[str]:
    """The program uv of the test environment, which is rarely on PATH; if there is none, another one."""
    own = str(Path(sys.executable).parent)
    return shutil.which("uv", path=os.pathsep.join([own, os.environ.get("PATH", os.defpath)]))


def with_uv(place: Place, word: str) -> List[str]:
    """The command of uv that installs a file into a place or uninstalls from it, up to its arguments.

    It runs offline: uv does not read pip's configuration, and so may not reach the index that pip does.
    """
    program = uv()
    assert program is not None, "the tests need uv, which the extra `test` brings"
    return [program, "pip", word, "-q", "--offline", "--python", str(place.python)]


def with_pip(place: Place, word: str) -> List[str]:
    """The same for pip; it comes with the interpreter, and is put into the place when it is first needed."""
    if not (place.packages / "pip").exists():
        succeed([place.python, "-m", "ensurepip"])
    more = ["-y"] if word == "uninstall" else []
    return [str(place.python), "-m", "pip", "--disable-pip-version-check", word, "-q", *more]


def install_wheel(place: Place, wheel: Path) -> None:
    """Install ddpfix alone, by uv where there is one (which is faster), otherwise by pip."""
    command = with_pip if uv() is None else with_uv
    succeed([*command(place, "install"), "--no-deps", wheel])


def unpack(wheel: Path, place: Place) -> Path:
    """Put the files of a wheel into a place without any installer; returns the folder of the package."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place.packages)
    return place.packages / "ddpfix"


def build(target: str, source: Path, folder: Path) -> Path:
    """Build the wheel or the sdist of a source tree with the project's own backend."""
    succeed([sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder], cwd=source)
    (built,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


def interpreters() -> Dict[str, str]:
    """Path by version of the CPythons on this machine; TEST_PYTHONS adds some, the running one is always there."""
    candidates = os.environ.get("TEST_PYTHONS", "").split(os.pathsep)
    candidates += [shutil.which(f"python{version}") or "" for version in VERSIONS]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates += [str(path) for path in sorted(pyenv.glob("3.*/bin/python"))]
    found = {"{}.{}".format(*sys.version_info): sys.executable}
    for candidate in filter(None, candidates):
        version = _version(candidate)
        if version in VERSIONS:
            found.setdefault(version, candidate)
    return found


def _version(python: str) -> str:
    # A name on PATH may be a shim of a version manager that leads nowhere.
    code = "import sys; print(sys.implementation.name, '%d.%d' % sys.version_info[:2])"
    try:
        done = start([python, "-c", code])
    except OSError:
        return ""
    name, _, version = done.stdout.strip().partition(" ")
    return version if done.returncode == 0 and name == "cpython" else ""


TORCH_METADATA = "Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"


def stub_torch(folder: Path, version: str = "0.1.0") -> Path:
    """A package that is called torch and does nothing; no row of the matrix is for version 0.1.0."""
    package = folder / "torch"
    metadata = folder / f"torch-{version}.dist-info"
    for path in (package / "nn" / "parallel", metadata):
        path.mkdir(parents=True)
    (metadata / "METADATA").write_text(TORCH_METADATA.format(version=version), encoding="utf-8")
    (package / "__init__.py").write_text(f"__version__ = {version!r}\n", encoding="utf-8")
    (package / "nn" / "__init__.py").write_text("", encoding="utf-8")
    (package / "nn" / "parallel" / "__init__.py").write_text("", encoding="utf-8")
    (package / "nn" / "parallel" / "distributed.py").write_text("class Other:\n    pass\n", encoding="utf-8")
    (package / "tool.py").write_text("import sys\nprint(__name__, __spec__.name, sys.argv[1:])\n", encoding="utf-8")
    return folder
