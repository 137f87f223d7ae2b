"""``++model_conf.X=`` changes the model's own configuration instead of replacing it; missing weights stop the run.

FunASR takes the presence of ``model_conf`` for "this model is fully described" and does not fetch its configuration:
the model's class is then unknown. An ``init_param`` that does not exist is printed, and training starts from random
weights.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from types import ModuleType
from typing import Any, Iterator, List

from ddpfix import log
from ddpfix.patching import temporary
from ddpfix.patching.site import Site

from . import entry
from .config import leaves, merged, plain, section

CONF = "model_conf"
WEIGHTS = "init_param"


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
        log.info(f"model_conf: {', '.join(key for key, _ in leaves(held))} set in the model's own configuration")


def weights(site: Site, module: ModuleType, owner: Any) -> None:
    """Register for the entry's ``main``."""
    entry.before_main(site, look_for_weights)
    entry.around_main(site, _several)


def look_for_weights(run: entry.Run) -> None:
    """Raises ValueError for a checkpoint that is not there; a list of one is that one."""
    users = plain(run.cfg.get(WEIGHTS))
    value = users if users else plain(run.kwargs.get(WEIGHTS))
    paths = _listed(value)
    if not paths or run.kwargs.get("oss_bucket") is not None:
        return
    missing = [path for path in paths if not os.path.exists(path)]
    if missing:
        raise ValueError(
            f"init_param: {', '.join(missing)} does not exist, and training would start from random weights. Give the"
            " path of a checkpoint, or leave init_param out"
        )
    run.kwargs[WEIGHTS] = value if len(paths) > 1 else paths[0]


def _listed(value: Any) -> List[str]:
    return [str(path) for path in value] if isinstance(value, (list, tuple)) else [str(value)] if value else []


@contextlib.contextmanager
def _several(run: entry.Run) -> Iterator[None]:
    """1.0.18 and later load one checkpoint: of several, the others are loaded right after the first."""
    paths = _listed(plain(run.kwargs.get(WEIGHTS)))
    builder = sys.modules.get("funasr.auto.auto_model")
    by_builder = "AutoModel" in inspect.unwrap(run.namespace["main"]).__code__.co_names
    if len(paths) < 2 or not by_builder or builder is None:
        yield
        return
    load, run.kwargs[WEIGHTS] = vars(builder)["load_pretrained_model"], paths[0]

    def each(*args: Any, **kwargs: Any) -> Any:
        several = paths if kwargs.get("path") == paths[0] else [kwargs.get("path")]
        return [load(*args, **{**kwargs, "path": path}) for path in several][-1]

    with temporary.replaced(builder, "load_pretrained_model", each):
        yield
