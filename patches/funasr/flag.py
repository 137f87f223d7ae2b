"""``train_conf.find_unused_parameters`` arrives at DDP, as a truth value, from both entries (FunASR issue 1584).

``train_ds`` of 1.0.28 to 1.1.16 never hands the configuration to the function that builds DDP; 1.1.9 hands the flag to
``init_process_group`` instead, which refuses it. FunASR always passes the keyword on, with its own default where the
user set nothing: so the user's value is noted for the time in which DDP is built.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Optional

from ddpfix import log
from ddpfix.models import wrap_hooks
from ddpfix.patching.site import Site

from . import entry
from .entry import section, truth

FLAG = "find_unused_parameters"
WHERE = f"train_conf.{FLAG}"


def arrive(site: Site, module: ModuleType, owner: Any) -> None:
    entry.before_main(site, normalise)
    entry.around_main(site, lambda run: wrap_hooks.user_chose(user_flag(run)))


def trainer(site: Site, module: ModuleType, owner: Any) -> None:
    """``Trainer.warp_model``, where it gets no configuration."""
    site.wrap(owner, "warp_model", _warped)


def group(site: Site, module: ModuleType, owner: Any) -> None:
    """``init_process_group``, which 1.1.9 hands the flag to."""
    site.wrap(owner, "init_process_group", _group)


def normalise(run: entry.Run) -> None:
    """Bring the flag to the one place where FunASR reads it, as True or False; null counts as not set."""
    conf = section(run.kwargs, "train_conf")
    before = dict(conf)
    if FLAG in run.kwargs:
        value = run.kwargs.pop(FLAG)
        if FLAG in conf:
            log.info(f"{FLAG}={value} is ignored, because {WHERE}={conf[FLAG]} is set")
        else:
            log.info(f"moved {FLAG}={value} to {WHERE}, where FunASR reads it")
            conf[FLAG] = value
    user_value = truth(conf.pop(FLAG, None), WHERE)
    if user_value is not None:
        conf[FLAG] = user_value
    if conf != before or any(type(conf[key]) is not type(value) for key, value in before.items()):
        run.kwargs["train_conf"] = conf


def user_flag(run: entry.Run) -> Optional[bool]:
    """Return the user's value, from the command line or a file; a downloaded model's configuration is not his."""
    theirs = FLAG in run.cfg or FLAG in (run.cfg.get("train_conf") or {})
    return truth(section(run.kwargs, "train_conf").get(FLAG), WHERE) if theirs else None


def _warped(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    run = entry.current()
    if run is not None and "train_conf" not in kwargs:
        lost = {"train_conf": section(run.kwargs, "train_conf"), "device": run.kwargs.get("device", "cuda")}
        kwargs = {**lost, **kwargs}
    return wrapped(*args, **kwargs)


def _group(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    if entry.current() is not None:
        kwargs = {key: value for key, value in kwargs.items() if key != FLAG}
    return wrapped(*args, **kwargs)
