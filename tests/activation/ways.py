"""The ways to switch ddpfix on from outside of a program, each with its unpatched command; and the probe."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import pytest

from tests.activation.support import ROOT, Finished, Place, start

PROBE = """
import json, os, sys
main = sys.modules["__main__"]
spec = main.__spec__
flags = [name for name in dir(sys.flags) if name[0] != "_" and isinstance(getattr(sys.flags, name), int)]
world = {
    "argv": sys.argv, "orig_argv": getattr(sys, "orig_argv", None), "path": sys.path, "executable": sys.executable,
    "prefix": sys.prefix, "cwd": os.getcwd(), "name": __name__, "file": getattr(main, "__file__", None),
    "package": __package__, "main": main.__dict__ is globals(),
    "spec": spec and [spec.name, spec.origin, type(spec.loader).__name__], "loader": type(main.__loader__).__name__,
    "flags": {name: getattr(sys.flags, name) for name in flags}, "warnings": sys.warnoptions, "x": sys._xoptions,
    "through": sys.stdout.write_through, "encoding": sys.stdout.encoding, "pycache": sys.pycache_prefix,
    "environment": sorted(set(os.environ) - {"DDPFIX", "PYTHONPATH"}),
    "hooks": [getattr(hook, "__qualname__", "") for hook in sys.path_hooks],
}
armed = [f for f in sys.meta_path if (type(f).__module__, type(f).__name__) == ("ddpfix.import_hook", "Finder")]
ours = sorted(name for name in sys.modules if name.partition(".")[0] == "ddpfix")
if armed:
    import torch, ddpfix
active = bool(armed) and ddpfix.report().active
print(json.dumps({"world": world, "armed": len(armed), "active": active, "ours": ours}))
"""


def look(done: Finished[str], silent: bool = True) -> Dict[str, Any]:
    """What the probe has printed."""
    assert done.returncode == 0 and not (silent and done.stderr), done.stderr
    seen: Dict[str, Any] = json.loads(done.stdout)
    return seen


@dataclass(frozen=True)
class Way:
    """How a command line is started under ddpfix, in which place, and with which environment both ways."""

    place: Place
    prefix: Tuple[str, ...]
    env: Dict[str, str]
    switch: Optional[str] = None
    console: bool = False

    def _start(
        self,
        ours: bool,
        rest: Sequence[object],
        here: Optional[Path] = None,
        flags: Sequence[str] = (),
        stdin: str = "",
        **more: str,
    ) -> Finished[str]:
        """Run it under ddpfix, or as it is; keywords are environment variables."""
        words = self.ours(flags, rest) if ours else [self.place.python, *flags, *rest]
        return start(words, self.ours_env(**more) if ours else self.unpatched_env(**more), here, stdin)

    run = partialmethod(_start, True)
    plain = partialmethod(_start, False)

    def ours(self, flags: Sequence[str], rest: Sequence[object]) -> List[object]:
        first = [self.place.bin / "ddpfix"] if self.console else [self.place.python, *flags]
        return [*first, *self.prefix, *rest]

    def unpatched_env(self, **more: Optional[str]) -> Dict[str, str]:
        return self.place.env(**{**self.env, **more})

    def ours_env(self, **more: Optional[str]) -> Dict[str, str]:
        return self.unpatched_env(DDPFIX=self.switch, **more)


WAYS = ("variable", "run", "console", "checkout")


def make(name: str, request: pytest.FixtureRequest) -> Way:
    if name == "checkout":
        # Nothing is installed here: the checkout is on the path, for us and for the unpatched command.
        return Way(request.getfixturevalue("unpatched"), ("-m", "ddpfix", "run"), {"PYTHONPATH": str(ROOT)})
    installed: Place = request.getfixturevalue("installed")
    if name == "variable":
        return Way(installed, (), {}, switch="1")
    if name == "console":
        return Way(installed, ("run",), {}, console=True)
    return Way(installed, ("-m", "ddpfix", "run"), {})


def lay_out(folder: Path) -> Path:
    """The probe as a script, in a package, in a folder and in a zip file with a __main__, and without an ending."""
    package = folder / "package"
    package.mkdir()
    for path in ("probe.py", "package/probe.py", "package/__main__.py", "probe", "my probe.py"):
        (folder / path).write_text(PROBE, encoding="utf-8")
    (package / "__init__.py").write_text("", encoding="utf-8")
    (folder / "probe").chmod(0o755)
    import zipfile

    with zipfile.ZipFile(folder / "probe.zip", "w") as archive:
        archive.writestr("__main__.py", PROBE)
    return folder
