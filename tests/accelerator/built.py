"""The stand-in accelerator's extension, compiled once for a torch and a source with the compiler that is here."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sysconfig
from pathlib import Path

import torch
from torch.utils.cpp_extension import include_paths, library_paths

SOURCE = Path(__file__).with_name("accelerator.cpp")
COMPILER = shutil.which("g++")
NAME = "accelerator_extension"
# Headers that are not public: of other releases it is not known whether they fit.
RELEASES = ("2.13.",)


def missing() -> str:
    """Why it cannot be compiled here; "" if it can."""
    if COMPILER is None:
        return "there is no g++ to build the stand-in accelerator with"
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not headers.exists():
        return f"there is no {headers} to build the stand-in accelerator with"
    fits = torch.__version__.startswith(RELEASES)
    return "" if fits else f"the stand-in accelerator is written for torch {RELEASES[0]}x"


def built(folder: Path) -> Path:
    """The library; compiled (half a minute) where the folder has none of this source and this torch.

    Args:
        folder: where it stays for the next run.
    """
    key = hashlib.sha1(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:12]
    made = folder / f"{NAME}.{key}.so"
    if made.exists():
        return made
    parts = [*(f"-I{path}" for path in [*include_paths(), sysconfig.get_paths()["include"]])]
    parts += [f"-L{path}" for path in library_paths()]
    parts += ["-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python", f"-DTORCH_EXTENSION_NAME={NAME}", "-std=c++20"]
    part = made.with_suffix(".part")
    command = [str(COMPILER), "-O0", "-w", "-shared", "-fPIC", str(SOURCE), "-o", str(part), *parts]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    part.rename(made)
    return made
