"""Examines one process, and returns what it knows as plain data: facts by section, and what is wrong with them."""

from __future__ import annotations

import getpass
import os
import platform
import re
import shutil
import socket
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

import ddpfix
from ddpfix import _switch
from ddpfix.cli import plan, run
from ddpfix.matrix import detect, loader, resolve, untested
from ddpfix.matrix.model import Matrix
from ddpfix.settings import reading
from ddpfix.settings.reading import SETTINGS, Settings, SettingsError, switch_name

#: The form of the data; a key that goes or changes its meaning makes it a new one.
FORMAT = 5
BLOCKS, WARNING = "blocks", "warning"
# The libraries that a toolkit's behaviour hangs on and that the matrix does not name.
_BESIDE = ("numpy", "torchaudio", "torchvision", "lightning", "pytorch-lightning", "deepspeed", "peft", "datasets")
# MiB of shared memory with which loader workers come to an end soon (Docker gives 64), and open files: each tensor that
# they hand over is one.
_LITTLE_SHM, _FEW_FILES = 512, 4096
# Interfaces that are shown; a host of containers has hundreds.
_SHOWN = 24
# A folder without a pyproject.toml.
_NOWHERE = Path(os.devnull)


class Problem(NamedTuple):
    """One problem; its level is :data:`BLOCKS` if no training can run like this, else :data:`WARNING`."""

    level: str
    about: str
    text: str
    cure: str


#: The facts of one section, and what is wrong with them.
Section = Tuple[Dict[str, Any], List[Problem]]


def make() -> Dict[str, Any]:
    """Examine everything: a part that fails is a finding, and the others are there. MatrixError: there is no matrix."""
    whole = loader.load()
    values, errors = read_settings(whole)
    torch, problem = _torch()
    toolkits = detect.installed_versions(whole)
    parts: Dict[str, Callable[[], Section]] = {
        "versions": lambda: _versions(toolkits, torch, problem),
        "activation": activation,
        "settings": lambda: settings_in_force(values, errors),
        "patches": lambda: _patches(whole, toolkits, values),
        "network": lambda: network(_backend(torch)),
        "limits": lambda: limits(torch),
    }
    found: Dict[str, Any] = {}
    findings: List[Problem] = []
    for name, look in parts.items():
        try:
            found[name], wrong = look()
        except Exception as caught:
            found[name] = {"error": error(caught)}
            text = f"this part could not be examined: {error(caught)}"
            wrong = [Problem(WARNING, name, text, "please report this; the other parts are complete")]
        findings += wrong
    return {**judged(findings), **found}


def judged(findings: List[Problem]) -> Dict[str, Any]:
    """Return the head of a report: its form, and its findings, of which those that stop a training come first."""
    ordered = sorted(findings, key=lambda each: each.level != BLOCKS)
    blocked = any(each.level == BLOCKS for each in ordered)
    return {"format": FORMAT, "blocked": blocked, "findings": [each._asdict() for each in ordered]}


def _torch() -> Tuple[Any, str]:
    """Return torch, or None and why it cannot be imported."""
    try:
        import torch
        import torch.distributed
    except ModuleNotFoundError as caught:
        # A module that torch itself needs may be what is missing.
        return None, "not installed" if caught.name == "torch" else error(caught)
    except BaseException as caught:
        # A broken install raises anything: OSError for a library, AttributeError for a torch.py in the folder.
        if isinstance(caught, KeyboardInterrupt):
            raise
        return None, error(caught)
    return torch, ""


def _versions(toolkits: Mapping[str, Optional[str]], torch: Any, problem: str) -> Section:
    found: Dict[str, Any] = {
        "ddpfix": ddpfix.__version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()) or None,
        "toolkits": toolkits,
        "beside": {name: version for name in _BESIDE for version in [_version_of(name)] if version},
        "torch": {"error": problem},
    }
    if torch is None:
        cure = "install torch for this interpreter"
        if problem != "not installed":
            cure = "reinstall torch; if the message names a file of yours, rename that file"
        return found, [Problem(BLOCKS, "versions", f"torch cannot be imported: {problem}", cure)]
    found["torch"] = {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if _has(torch, "nccl") else None,
        "backends": {name: _has(torch, name) for name in ("gloo", "nccl")},
        "imported_from": private(getattr(torch, "__file__", None) or "(no file)"),
    }
    return found, []


def _version_of(distribution: str) -> Optional[str]:
    try:
        return metadata.version(distribution)
    except Exception:
        # Not there, or its metadata is broken.
        return None


def _has(torch: Any, backend: str) -> bool:
    """Return whether torch was built with a backend; before torch 2.2 only gloo's class tells of gloo."""
    distributed = torch.distributed
    ask = getattr(distributed, f"is_{backend}_available", lambda: hasattr(distributed, "ProcessGroupGloo"))
    return bool(distributed.is_available() and ask())


def _backend(torch: Any) -> Optional[str]:
    """Return the backend that trainers take: nccl where there are GPUs, else gloo."""
    if torch is None:
        return None
    takes_nccl = _has(torch, "nccl") and torch.cuda.is_available()
    return "nccl" if takes_nccl else "gloo" if _has(torch, "gloo") else None


def _engine() -> Any:
    """Return the engine of the activation in force in this process, or None; nothing is imported for that."""
    module: Any = sys.modules.get("ddpfix.engine")
    return module.current() if module is not None else None


def _waits() -> bool:
    """Return whether our finder is in place: the engine comes with the first import of a toolkit."""
    return any(type(finder).__module__ == "ddpfix.import_hook" for finder in sys.meta_path)


def activation() -> Section:
    """Return how ddpfix is switched on here, and from where it is imported."""
    value, switch, findings = os.environ.get("DDPFIX", "").strip(), "not set", []
    if value:
        try:
            switch = "on" if _switch.switch(value) else "off"
        except ValueError as refused:
            switch = "not understood"
            findings.append(Problem(BLOCKS, "activation", str(refused), "set DDPFIX=1, or unset it"))
    by = {"ddpfix.auto": "import ddpfix.auto", "ddpfix._boot": "DDPFIX"}
    named = [("-I", sys.flags.isolated), ("-E", sys.flags.ignore_environment), ("-S", sys.flags.no_site)]
    flags = " ".join(name for name, is_set in named if is_set)
    active = _engine() is not None or (switch == "on" and "torch" not in sys.modules and _waits())
    found = {
        "switch": switch,
        "active": active,
        "by": next((how for module, how in by.items() if module in sys.modules), None),
        "imported_from": private(Path(ddpfix.__file__ or "").parent),
        "start_files": [private(file) for file in run.start_files()],
        "interpreter_flags": flags or None,
    }
    # Where it waits and is not active, a setting has been refused, which is said elsewhere.
    if switch == "on" and not active and not _waits():
        text = "DDPFIX is on, but ddpfix is not active: this interpreter reads no ddpfix.pth"
        cure = "install ddpfix into this environment, or start the program with python -m ddpfix run"
        if flags:
            text = f"DDPFIX is on, but Python's options {flags} keep ddpfix from starting"
            cure = "start Python without them, or import ddpfix.auto in the script"
        findings.append(Problem(WARNING, "activation", text, cure))
    return found, findings


def read_settings(whole: Matrix, environ: Optional[Mapping[str, str]] = None) -> Tuple[Settings, List[str]]:
    """Return the settings in force without those that are refused, and why these are."""
    if environ is None:
        environ = {} if sys.flags.ignore_environment else os.environ
    errors: List[str] = []
    good: Dict[str, str] = {}
    for name, value in environ.items():
        if name.startswith(reading.PREFIX):
            try:
                reading.read({}, whole.patches, {name: value}, _NOWHERE)
                good[name] = value
            except SettingsError as refused:
                errors.append(private(str(refused)))
    try:
        return reading.read({}, whole.patches, good), errors
    except SettingsError as refused:
        # In the file.
        return reading.read({}, whole.patches, good, _NOWHERE), [*errors, private(str(refused))]


def settings_in_force(values: Settings, errors: List[str]) -> Section:
    """Return each setting's value and source, the switches of patches, and what is refused."""
    found: Dict[str, Any] = {
        "values": {s.name: {"value": values[s.name], "from": values.sources.get(s.name, "default")} for s in SETTINGS},
        "switches": {p: {"value": v, "from": values.sources.get(p, "")} for p, v in values.switches.items()},
        "refused": errors,
    }
    cure = "correct or unset it: until then ddpfix is off and python -m ddpfix run refuses to start"
    earlier = [Problem(WARNING, "settings", *text.split(": ", 1)) for text in map(private, values.gone)]
    return found, [*(Problem(BLOCKS, "settings", each, cure) for each in errors), *earlier]


def _patches(whole: Matrix, toolkits: Mapping[str, Optional[str]], values: Settings) -> Section:
    """Return the plan for each patch, and what was done if ddpfix is active in this process."""
    decisions = resolve.resolve(whole, toolkits, values)
    entries = [plan.as_data(whole, decision) for decision in decisions]
    running, findings = _engine(), []
    states = {each.id: each for each in running.report().patches} if running is not None else {}
    for text in untested.lines(whole, decisions).values():
        # Such a line has the cure behind the semicolon.
        what, _, cure = text.partition("; ")
        findings.append(Problem(WARNING, "patches", what, cure or "if it fails, install the nearest release"))
    for entry in entries:
        state = states.get(entry["id"])
        entry["state"] = str(state.state) if state is not None else None
        if state is not None and state.state == "failed":
            text = f"{entry['id']} could not be applied: {private(state.reason)}"
            cure = f"please report this; {switch_name(entry['id'])}=0 silences it"
            findings.append(Problem(WARNING, "patches", text, cure))
    return {"entries": entries}, findings


def network(backend: Optional[str], environ: Optional[Mapping[str, str]] = None) -> Section:
    """Return the interfaces of this machine, and the one that gloo would take.

    gloo in torch (``ProcessGroupGloo.cpp``) takes the interfaces of ``GLOO_SOCKET_IFNAME``, else that of the first
    address to which this host's name resolves and which can be bound, else loopback.
    """
    environ = os.environ if environ is None else environ
    level, findings = BLOCKS if backend == "gloo" else WARNING, []
    names = [name for _, name in socket.if_nameindex()] if hasattr(socket, "if_nameindex") else []
    chosen = [name for name in environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    address = own_address(socket.gethostname())
    loops = address is None or address == "::1" or address.startswith("127.")
    takes = "loopback" if loops else "the interface to which the host's name resolves"
    if names and set(chosen) - set(names):
        text = "GLOO_SOCKET_IFNAME names no interface of this machine"
        cure = f"unset it, or choose from {', '.join(names[:_SHOWN])}"
        findings.append(Problem(level, "network", text, cure))
    size, local = (int(word) if word.isdecimal() else 0 for word in map(environ.get, _SIZES, ("", "")))
    if (chosen in (["lo"], ["lo0"]) or (loops and not chosen)) and size > local > 0:
        text = "gloo would use the loopback interface, which other machines cannot reach"
        others = ", ".join(name for name in names[:_SHOWN] if not name.startswith("lo")) or "none here"
        cure = f"set GLOO_SOCKET_IFNAME to the interface between the machines ({others})"
        findings.append(Problem(level, "network", text, cure))
    would_use = f"{','.join(chosen)} (GLOO_SOCKET_IFNAME)" if chosen else takes
    return {"backend": backend, "interfaces": names[:_SHOWN], "gloo_would_use": would_use}, findings


_SIZES = ("WORLD_SIZE", "LOCAL_WORLD_SIZE")


def own_address(name: str) -> Optional[str]:
    """Return the first address to which a host name resolves and which can be bound here; None if there is none."""
    try:
        resolved = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    for family, _, _, _, address in resolved:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind((address[0], 0, *address[2:]))
                return str(address[0])
        except OSError:
            continue
    return None


def limits(torch: Any, shm: str = "/dev/shm", files: Optional[int] = None) -> Section:
    """Return what loader workers run out of: shared memory (MiB) and open files (``files``, by default here)."""
    findings: List[Problem] = []
    try:
        total: Optional[int] = shutil.disk_usage(shm).total >> 20
    except OSError:
        total = None
    try:
        import resource

        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if files is None else files
    except ImportError:
        soft = None
    strategy = torch.multiprocessing.get_sharing_strategy() if torch is not None else None
    if total is not None and total < _LITTLE_SHM:
        text = f"/dev/shm has {total} MiB: loader workers hand batches over in it, and die by SIGBUS when it is full"
        cure = "docker run --shm-size=16g (or --ipc=host; in Kubernetes an emptyDir of medium Memory at /dev/shm)"
        findings.append(Problem(WARNING, "limits", text, cure))
    if soft is not None and 0 <= soft < _FEW_FILES and strategy in (None, "file_descriptor"):
        text = f"a process may open only {soft} files: loaders fail with 'Too many open files' or 'received 0 items'"
        cure = "ulimit -n 65536 before the start (docker run --ulimit nofile=65536:65536)"
        findings.append(Problem(WARNING, "limits", text, cure))
    return {"shared_memory_mib": total, "open_files": soft, "sharing_strategy": strategy}, findings


def private(place: object, home: Optional[str] = None, user: Optional[str] = None) -> str:
    """Return words with ``~`` for the home folder and ``USER`` for the user's name in a path; root is everybody's."""
    words, home = str(place), os.path.expanduser("~") if home is None else home
    if len(home) > 1:
        words = re.sub(re.escape(home.rstrip("/")) + r"(?![\w.-])", "~", words)
    if user is None:
        try:
            user = getpass.getuser()
        except (KeyError, OSError, ImportError):
            # A user without an entry, as in many containers.
            return words
    return words if user == "root" else re.sub(rf"(?<=[/\\]){re.escape(user)}(?![\w.-])", "USER", words)


def error(caught: BaseException) -> str:
    """Return an error in one short line."""
    lines = str(caught).strip().splitlines() or [""]
    return private(f"{type(caught).__name__}: {lines[0]}"[:300].rstrip(": "))
