"""How ddpfix is switched on here, from where it is imported, and whether what switches it on is intact."""

from __future__ import annotations

import base64
import hashlib
import os
import site
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

import ddpfix
from ddpfix import _env
from ddpfix.cli.doctor import private, versions
from ddpfix.cli.doctor.finding import BLOCKS, WARNING, Problem, Section

_SAVE = "pip install --force-reinstall --no-deps ddpfix (or the path of your clone)"


def engine() -> Optional[Any]:
    """Return the engine of the activation in force in this process, or None; nothing is imported for that."""
    module: Any = sys.modules.get("ddpfix.engine")
    return module.current() if module is not None else None


def _waits() -> bool:
    """Return whether our finder is in place: the engine comes with the first import of a toolkit."""
    return any(type(finder).__module__ == "ddpfix.import_hook" for finder in sys.meta_path)


def look() -> Section:
    """Return the section."""
    findings: List[Problem] = []
    here, switch = Path(ddpfix.__file__ or "").parent, _switch(findings)
    start_files = [_start_file(folder / "ddpfix.pth", here) for folder in site_packages()]
    found = {
        "switch": switch,
        "active": engine() is not None or (switch == "on" and "torch" not in sys.modules and _waits()),
        "by": _by(start_files),
        "imported_from": private.path(here),
        "installed_in": _installed_in(here, findings),
        "start_files": [entry for entry in start_files if entry is not None],
        "interpreter_flags": versions.interpreter_flags() or None,
    }
    _judge(found, findings)
    return found, findings


def _switch(findings: List[Problem]) -> str:
    value = os.environ.get("DDPFIX")
    if value is None or not value.strip():
        return "not set"
    try:
        return "on" if _env.switch(value) else "off"
    except ValueError as error:
        findings.append(Problem(BLOCKS, "activation", str(error), "set DDPFIX=1, or unset it"))
        return "not understood"


def _by(start_files: List[Optional[Dict[str, Any]]]) -> Optional[str]:
    """Return the switch that has activated ddpfix in this process."""
    if "ddpfix.auto" in sys.modules:
        return "import ddpfix.auto"
    if hasattr(sys, "_ddpfix"):
        return "DDPFIX and ddpfix.pth"
    if "ddpfix._boot" in sys.modules:
        return "DDPFIX and the sitecustomize of python -m ddpfix run"
    return None


def site_packages() -> List[Path]:
    """Return the folders whose .pth files this interpreter reads."""
    folders = list(site.getsitepackages()) if hasattr(site, "getsitepackages") else []
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return list(dict.fromkeys(map(Path, folders)))


def _start_file(file: Path, here: Path) -> Optional[Dict[str, Any]]:
    """Return a ``ddpfix.pth``: where it is, and whether it is what was installed."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    return {"file": private.path(file), "intact": is_intact(content, file, here)}


def is_intact(content: bytes, file: Path, here: Path) -> bool:
    """Return whether a file has the content that its installer recorded, or that a checkout has."""
    own = here / "ddpfix.pth"
    if own.is_file():
        return content == own.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    for record in file.parent.glob("ddpfix-*.dist-info/RECORD"):
        lines = record.read_text(encoding="utf-8", errors="replace").splitlines()
        return any(line.startswith(f"ddpfix.pth,sha256={digest},") for line in lines)
    return b"ddpfix._boot.start()" in content


def _installed_in(here: Path, findings: List[Problem]) -> Optional[str]:
    """Return the place of the installed ddpfix; a finding if scripts would import other code than this command runs."""
    for folder in site_packages():
        other = folder / "ddpfix"
        if (other / "__init__.py").is_file():
            if other.resolve() != here.resolve() and not is_copy(other, here):
                one, two = private.path(here), private.path(other)
                text = f"this command runs ddpfix from {one}, but training scripts import {two}, and the code differs"
                cure = "install the first one again (pip install .), or run the doctor from another folder"
                findings.append(Problem(WARNING, "activation", text, cure))
            return private.path(other)
    return None


def is_copy(installed: Path, here: Path) -> bool:
    """Return whether each file of an installed package is in another one, or beside it, as in a clone."""
    files = [file for file in installed.rglob("*") if file.suffix in (".py", ".yaml")]
    return bool(files) and all(_same(file, file.relative_to(installed), here) for file in files)


def _same(file: Path, name: Path, here: Path) -> bool:
    # A clone has the patches and the matrix beside the package.
    beside = [place for place in (here / name, here.parent / name) if place.is_file()]
    return bool(beside) and beside[0].read_bytes() == file.read_bytes()


def _judge(found: Dict[str, Any], findings: List[Problem]) -> None:
    for entry in found["start_files"]:
        if not entry["intact"]:
            text = f"{entry['file']} was changed after the installation: DDPFIX=1 may do nothing"
            findings.append(Problem(WARNING, "activation", text, _SAVE))
    if found["switch"] != "on" or found["active"] or _waits():
        # Where it waits and is not active, a setting has been refused, which is said elsewhere.
        return
    if found["interpreter_flags"]:
        text = f"DDPFIX is on, but Python's options {found['interpreter_flags']} keep ddpfix from starting"
        cure = "start Python without them, or import ddpfix.auto in the script"
    else:
        text = "DDPFIX is on, but ddpfix is not active: this interpreter reads no ddpfix.pth"
        cure = "install ddpfix into this environment, or start the program with python -m ddpfix run"
    findings.append(Problem(WARNING, "activation", text, cure))
