"""``++model_conf.X=`` changes the model's own configuration instead of replacing it.

FunASR takes the presence of ``model_conf`` for "this model is fully described" and does not fetch its configuration:
the model's class is then unknown.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddpfix import log
from ddpfix.patching.site import Site

from . import entry
from .entry import leaves, merged, section

CONF = "model_conf"


def conf(site: Site, module: ModuleType, owner: Any) -> None:
    """Register for the moments before and after the download."""
    entry.before_download(site, take_out)
    entry.before_main(site, put_back)


def take_out(run: entry.Run) -> None:
    """Without ``model_conf`` the release fetches the model's configuration as ever."""
    if not isinstance(run.cfg.get(CONF), dict) or described(run):
        return
    from omegaconf import OmegaConf

    run.held[CONF] = section(OmegaConf.create(run.cfg), CONF)
    del run.cfg[CONF]


def described(run: entry.Run) -> bool:
    """Return whether the configuration describes the model itself, as one that comes from a file does."""
    keys = [f"{CONF}.{key}" for key, _ in leaves(run.cfg[CONF])]
    if CONF not in run.typed and (not keys or any(key not in run.typed for key in keys)):
        return True
    name = run.cfg.get("model")
    if name not in run.namespace["tables"].model_classes:
        return False
    # A few names (Whisper's) are those of a class and of a model on the hub: a file makes the difference.
    return any(key.split(".")[0] not in {typed.split(".")[0] for typed in run.typed} for key in run.cfg)


def put_back(run: entry.Run) -> None:
    """The user's ``model_conf`` over the model's own."""
    held = run.held.pop(CONF, None)
    if held is not None:
        run.kwargs[CONF] = merged(section(run.kwargs, CONF), held)
        log.info(f"set {', '.join(f'model_conf.{key}' for key, _ in leaves(held))} in the model's own configuration")
