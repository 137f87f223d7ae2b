"""``use_deepspeed`` and ``use_fsdp`` work, or stop the run before training with what can be done.

FunASR reads them in two places, at the top level and in ``train_conf``, and each entry of each release acts on another
one: half a DeepSpeed run, DDP under the name of FSDP, and from 1.4.2 on replicas that nobody synchronises.
"""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Any, Iterator

from ddpfix import log
from ddpfix.patching import temporary
from ddpfix.patching.site import Site

from . import entry
from .entry import section, truth

_FSDP = (
    "use_fsdp: FunASR cannot train and save with FSDP (this entry {entry}). Remove it to use DDP. To shard, run"
    " funasr/bin/train_ds.py (1.0.28 or later) with ++use_deepspeed=true ++train_conf.deepspeed_config=FILE"
)
_NO_DEEPSPEED = (
    "use_deepspeed: this entry does not support DeepSpeed and would use DDP. Run funasr/bin/train_ds.py (1.0.28 or"
    " later), or remove the setting"
)


def agree(site: Site, module: ModuleType, owner: Any) -> None:
    entry.before_main(site, normalise)
    entry.around_main(site, lambda run: _one_kind(site, run))


def normalise(run: entry.Run) -> None:
    """Give both places the same value; the top level wins, as in 1.4.2 and later. A ValueError stops the run."""
    conf = section(run.kwargs, "train_conf")
    names = [name for name in ("use_fsdp", "use_deepspeed", "use_ddp") if name in run.kwargs or name in conf]
    wanted = {}
    for name in names:
        at_top = run.kwargs.get(name) is not None
        value, key = (run.kwargs[name], name) if at_top else (conf.get(name), f"train_conf.{name}")
        wanted[name] = bool(truth(value, key))
    if wanted.get("use_fsdp"):
        raise ValueError(_FSDP.format(entry="would not synchronise the ranks" if run.ds else "would use DDP"))
    # main hands these to Trainer itself, so that it must not find them in train_conf as well.
    for name in ("use_fsdp", "use_ddp"):
        conf.pop(name, None)
    if "use_ddp" in names:
        log.info("use_ddp is not a FunASR setting: FunASR uses DDP whenever there is more than one process")
    if "use_deepspeed" in wanted:
        conf["use_deepspeed"] = run.kwargs["use_deepspeed"] = wanted["use_deepspeed"]
        if wanted["use_deepspeed"] and not run.ds:
            raise ValueError(_NO_DEEPSPEED)
        if wanted["use_deepspeed"]:
            if run.namespace.get("deepspeed") is None:
                raise ValueError("use_deepspeed: cannot import deepspeed. Run python -c 'import deepspeed' to see why")
            path = run.kwargs.get("deepspeed_config") or conf.get("deepspeed_config")
            conf["deepspeed_config"] = run.kwargs["deepspeed_config"] = str(path or "")
    if names:
        run.kwargs["train_conf"] = conf


@contextlib.contextmanager
def _one_kind(parent: Site, run: entry.Run) -> Iterator[None]:
    """Before 1.4.2 the trainer is also given ``use_ddp``, and would enter DDP's ``no_sync`` on a DeepSpeed engine."""
    if not section(run.kwargs, "train_conf").get("use_deepspeed") or "_resolve_distributed_config" in run.namespace:
        yield
        return
    with temporary.patched(parent) as site:
        site.wrap(run.namespace["Trainer"], "__init__", _without_ddp)
        yield


def _without_ddp(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
    wrapped(*args, **{**kwargs, "use_ddp": False})
