"""A user's setting in a section (``++frontend_conf.X=``) no longer removes the files that the model brings for it.

A model's ``configuration.json`` names its files (CMVN, token list). ModelScope's branch up to 1.1.6 and Hugging Face's
to this day replace the whole section by the user's: training runs without CMVN, or dies of a missing token list.
"""

from __future__ import annotations

import inspect
import json
import os
from types import ModuleType
from typing import Any, Dict

from ddpfix import log
from ddpfix.patching.site import Site

from . import entry
from .config import leaves, merged, plain


def keep_files(site: Site, module: ModuleType, owner: Any) -> None:
    """The functions that fetch a model and read its configuration."""
    for name in ("download_from_ms", "download_from_hf"):
        if hasattr(owner, name):
            site.wrap(owner, name, _downloaded)


def missing_hub(site: Site, module: ModuleType, owner: Any) -> None:
    """``hub=hf`` where the release has none."""
    entry.before_download(site, _hub)


def _downloaded(wrapped: Any, instance: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    users = plain_all(kwargs)
    result = wrapped(*args, **_readable(kwargs))
    try:
        return completed(result, users)
    except Exception as error:
        log.warning(f"the configuration of {users.get('model')} could not be read: {error!r}")
        return result


def plain_all(kwargs: Any) -> Dict[str, Any]:
    return {key: plain(value) for key, value in kwargs.items()}


def _readable(kwargs: Dict[str, Any]) -> Dict[str, Any]:
    """1.0.28 and later ask whether the path ``init_param`` exists: of a list, the first that does is shown."""
    paths = plain(kwargs.get("init_param"))
    if not isinstance(paths, (list, tuple)):
        return kwargs
    there = [path for path in paths if os.path.exists(str(path))]
    rest = {key: value for key, value in kwargs.items() if key != "init_param"}
    return {**rest, "init_param": there[0]} if there else rest


def completed(result: Any, users: Dict[str, Any]) -> Any:
    """Return the merged configuration of the model's files and the user's settings; the result if it has both."""
    config = plain_all(result)
    folder = str(config.get("model_path") or "")
    brought = _files(folder)
    lost = [key for key, path in leaves(brought) if "." in key and _at(users, key) is None and _at(config, key) != path]
    for key in lost:
        section = key.split(".")[0]
        config[section] = merged(config.get(section) or {}, brought[section])
    for section, value in users.items():
        if isinstance(value, dict):
            config[section] = merged(config.get(section) or {}, value)
    _weights(config, users, folder)
    if lost:
        log.info(f"kept from {folder} beside your own settings: {', '.join(sorted(lost))}")
    return result if config == plain_all(result) else config


def _weights(config: Dict[str, Any], users: Dict[str, Any], folder: str) -> None:
    """The user's checkpoint where there is one; not ``model.pb`` where the model has ``model.pt`` (1.0.7 to 1.0.27)."""
    theirs = users.get("init_param")
    paths = theirs if isinstance(theirs, (list, tuple)) else [theirs] if theirs else []
    current = str(config.get("init_param") or "")
    better = os.path.join(folder, "model.pt")
    if paths and all(os.path.exists(str(path)) for path in paths):
        config["init_param"] = theirs
    elif current == os.path.join(folder, "model.pb") and not os.path.exists(current) and os.path.exists(better):
        config["init_param"] = better


def _files(folder: str) -> Dict[str, Any]:
    """Return the files that ``configuration.json`` names and that are there, as a nested dict of paths."""
    file = os.path.join(folder, "configuration.json")
    if not os.path.exists(file):
        return {}
    with open(file, encoding="utf-8") as text:
        named = json.load(text).get("file_path_metas")
    # Without a configuration among them, the release does not read the model's folder at all.
    return _paths(folder, named) if isinstance(named, dict) and "config" in named else {}


def _paths(folder: str, named: Dict[str, Any]) -> Dict[str, Any]:
    paths: Dict[str, Any] = {}
    for key, value in named.items():
        if isinstance(value, dict):
            paths[key] = _paths(folder, value)
        elif isinstance(value, str) and os.path.exists(os.path.join(folder, value)):
            paths[key] = os.path.join(folder, value)
    return paths


def _at(config: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        config = plain(config).get(name) if isinstance(plain(config), dict) else None
    return config


def _hub(run: entry.Run) -> None:
    """Map names of a hub that this release does not know to those that it does, or stop the run with what to do."""
    word = str(run.cfg.get("hub") or run.cfg.get("model_hub") or "ms")
    hub = {"huggingface": "hf", "modelscope": "ms"}.get(word, word)
    if "model_conf" in run.cfg or (hub == word and hub != "hf"):
        return
    fetch = inspect.unwrap(run.namespace["download_model"])
    if hub == "hf" and "download_from_hf" not in fetch.__globals__:
        if not os.path.isdir(str(run.cfg.get("model"))):
            raise ValueError(
                "hub=hf: FunASR fetches nothing from Hugging Face before 1.0.28. Fetch the model yourself"
                " (huggingface-cli download REPOSITORY --local-dir FOLDER) and give ++model=FOLDER"
            )
        hub = "ms"
    # Up to 1.0.11 the key is model_hub.
    run.cfg.update({key: hub for key in ("hub", "model_hub") if key in run.cfg})
