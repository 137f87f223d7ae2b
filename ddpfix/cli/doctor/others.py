"""Others that change libraries at run time, as ddpfix does: who is installed, starts by itself, or has hooked in."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Dict, Iterable, List, NamedTuple, Optional

from ddpfix.cli.doctor import activation, private, versions
from ddpfix.cli.doctor.finding import WARNING, Finding, Section


class Patcher(NamedTuple):
    """One of them: its distribution, the top-level name that is imported, and what it means under DDP."""

    distribution: str
    module: str
    meaning: str = ""


PATCHERS = (
    Patcher("ddtrace", "ddtrace"),
    Patcher("opentelemetry-instrumentation", "opentelemetry"),
    Patcher("sentry-sdk", "sentry_sdk"),
    Patcher("newrelic", "newrelic"),
    Patcher("wandb", "wandb"),
    Patcher("apex", "apex", "apex.parallel.DistributedDataParallel is a wrapper of its own, which ddpfix leaves alone"),
    Patcher("deepspeed", "deepspeed", "its engine averages gradients by itself: only LayerDrop is fixed there"),
    Patcher("horovod", "horovod", "its optimizer averages gradients by itself: fixes of DDP do nothing there"),
    Patcher("liger-kernel", "liger_kernel", "replaces forwards of transformers' models"),
    Patcher("unsloth", "unsloth", "replaces forwards of transformers' models"),
    Patcher("intel-extension-for-pytorch", "intel_extension_for_pytorch"),
    Patcher("oneccl-bind-pt", "oneccl_bindings_for_pytorch"),
)
# What is replaced by those who measure or change a training.
_PLACES = (
    ("torch.nn.parallel.distributed", "DistributedDataParallel.__init__"),
    ("torch.nn.parallel.distributed", "DistributedDataParallel.forward"),
    ("torch.nn.modules.module", "Module.__call__"),
    ("torch.distributed.distributed_c10d", "init_process_group"),
    ("torch.distributed.distributed_c10d", "all_reduce"),
    ("torch.optim.optimizer", "Optimizer.__init__"),
    ("torch.utils.data.dataloader", "DataLoader.__init__"),
)
_IMPORT = re.compile(r"import\s+([A-Za-z_]\w*)")


def look(torch: Optional[Any], folders: Optional[Iterable[Path]] = None) -> Section:
    """Return the section.

    Args:
        torch: the module, or None where it cannot be imported.
        folders: of .pth files; this interpreter's by default.
    """
    hooks = start_files(activation.site_packages() if folders is None else folders)
    found: Dict[str, Any] = {
        "installed": installed(hooks),
        "start_files": hooks,
        "customize": customized(),
        "replaced": replaced() if torch is not None else [],
    }
    return found, _judge(found)


def installed(hooks: Dict[str, List[str]]) -> List[Dict[str, Any]]:
    """Return the known ones that are installed."""
    entries = []
    for patcher in PATCHERS:
        version = versions.version_of(patcher.distribution)
        if version is not None:
            by_itself = patcher.module in sys.modules or any(patcher.module in names for names in hooks.values())
            entries.append(
                {
                    "name": patcher.distribution,
                    "version": version,
                    "starts_by_itself": by_itself,
                    "meaning": patcher.meaning or None,
                }
            )
    return entries


def start_files(folders: Iterable[Path]) -> Dict[str, List[str]]:
    """Return the .pth files that run code, ours left out, with the modules that they import."""
    found: Dict[str, List[str]] = {}
    for folder in folders:
        for file in sorted(folder.glob("*.pth")):
            try:
                lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            except OSError:
                continue
            code = [line for line in lines if line.startswith(("import ", "import\t"))]
            if code and file.name != "ddpfix.pth":
                names = _IMPORT.findall("\n".join(code))
                found[file.name] = [name for name in dict.fromkeys(names) if name not in ("os", "sys")]
    return found


def customized() -> Dict[str, str]:
    """Return the sitecustomize and usercustomize that this interpreter has run, and where they are."""
    found = {}
    for name in ("sitecustomize", "usercustomize"):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and Path(file).parent.name != "_site":
            found[name] = private.path(file)
    return found


def replaced() -> List[Dict[str, str]]:
    """Return the places in torch that are not torch's own any more, with who did it."""
    found = []
    for module, attribute in _PLACES:
        owner: Any = sys.modules.get(module)
        for part in attribute.split("."):
            owner = getattr(owner, part, None)
        by = _who(owner) if owner is not None else "torch"
        if by not in ("torch", "ddpfix"):
            found.append({"place": f"{module}:{attribute}", "by": by})
    return found


def _who(function: Any) -> str:
    """Return the package whose code is called, as far as layers of wrappers show it, below ddpfix's own layer."""
    seen = 0
    who = "torch"
    while function is not None and seen < 20:
        seen += 1
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        module = str(getattr(function, "__module__", "") if code is None else _module_of(code, function))
        who = module.partition(".")[0] or "?"
        if who not in ("torch", "ddpfix", "wrapt", "functools"):
            return who
        function = getattr(function, "__wrapped__", None)
    return "torch" if who in ("wrapt", "functools") else who


def _module_of(code: Any, function: Any) -> str:
    # functools.wraps gives a wrapper the module's name of what it wraps, and its globals tell the truth.
    scope = getattr(getattr(function, "__func__", function), "__globals__", {})
    return str(scope.get("__name__", getattr(function, "__module__", "")))


def _judge(found: Dict[str, Any]) -> List[Finding]:
    findings = []
    for entry in found["replaced"]:
        text = f"{entry['place']} has been replaced by {entry['by']}"
        cure = f"if a training fails, run it once without {entry['by']} to tell whose failure it is"
        findings.append(Finding(WARNING, "others", text, cure))
    return findings
