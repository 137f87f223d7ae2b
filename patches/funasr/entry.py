"""FunASR's training entry, wherever its file lies: what the user typed, and the moments before and during ``main``.

``finetune.sh`` runs ``funasr/bin/train.py`` or ``train_ds.py`` as a script, often from a git clone whose release is not
the installed one, so no import of ``funasr.bin`` can be waited for. Every one of these files decorates its function
with ``hydra.main``: there we recognise it by what it uses, and through its globals we reach its own ``main``.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Mapping, Optional, Tuple

from ddpfix import log
from ddpfix.monitor.exit import last_words
from ddpfix.patching import temporary, tracebacks
from ddpfix.patching.site import Registry, Site

from . import audio


@dataclass
class Run:
    """One call of a training entry.

    Attributes:
        namespace: the globals of the script.
        typed: what the user typed on the command line, by dotted key, as raw text.
        cfg: what hydra composed from file and command line, as a nested dict; may be changed before the download.
        kwargs: what ``main`` is about to get; may be changed before ``main``.
        held: what was taken out of ``cfg`` before the download, and goes back before ``main``.
    """

    namespace: Dict[str, Any]
    typed: Dict[str, str] = field(default_factory=dict)
    cfg: Dict[str, Any] = field(default_factory=dict)
    kwargs: Dict[str, Any] = field(default_factory=dict)
    held: Dict[str, Any] = field(default_factory=dict)

    @property
    def ds(self) -> bool:
        """Whether the script trains with ``trainer_ds``."""
        return str(getattr(self.namespace.get("Trainer"), "__module__", "")).endswith("trainer_ds")


Hook = Callable[[Run], object]
Around = Callable[[Run], ContextManager[Any]]
_AT = "hydra.main:main"
# What FunASR takes where none is named.
DATASET = "AudioDataset"
_RUN: ContextVar[Optional[Run]] = ContextVar("ddpfix_funasr_run", default=None)


class Hooks:
    """What the fixes of one activation do at the training entry."""

    def __init__(self) -> None:
        self.before_download: Registry[Hook] = Registry(_AT)
        self.before_main: Registry[Hook] = Registry(_AT)
        self.around_main: Registry[Around] = Registry(_AT)


def install(site: Site, module: ModuleType, owner: Any) -> None:
    """Wrap ``hydra.main``: functions that are not FunASR's are decorated as ever."""
    site.wrap(owner, "main", functools.partial(_decorated, site.keep(Hooks)))
    around_main(site, lambda run: audio.named(site, run.namespace["tables"], run.kwargs.get("dataset", DATASET)))
    for name in ("funasr.bin.train", "funasr.bin.train_ds"):
        if hasattr(sys.modules.get(name), "main_hydra"):
            log.warning(
                f"{name} was imported before ddpfix, so its command line is not corrected. Import ddpfix.auto first"
            )


def current() -> Optional[Run]:
    """Return the training entry that is running in this process, or None."""
    return _RUN.get()


def before_download(site: Site, hook: Hook) -> None:
    """Have ``hook(run)`` called before the entry's first line; it may change ``run.cfg``."""
    site.register(site.keep(Hooks).before_download, hook)


def before_main(site: Site, hook: Hook) -> None:
    """Have ``hook(run)`` called before ``main``; it may change ``run.kwargs``. A ValueError stops the run."""
    site.register(site.keep(Hooks).before_main, hook)


def around_main(site: Site, factory: Around) -> None:
    """Have ``factory(run)``, a context manager, in force while ``main`` runs."""
    site.register(site.keep(Hooks).around_main, factory)


def _decorated(hooks: Hooks, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    decorate = wrapped(*args, **kwargs)

    @functools.wraps(decorate)
    def decorator(task: Any) -> Any:
        return _ending(decorate(_with_hooks(hooks, task))) if _is_entry(task) else decorate(task)

    return decorator


def _ending(run: Any) -> Any:
    """Hydra prints an error of ``main`` and exits: the error stays the one that has ended the program."""

    @functools.wraps(run)
    def begin(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        except SystemExit as error:
            last_words.exits(error)
            raise
        except Exception as error:
            tracebacks.hide(error)
            raise

    return begin


def _is_entry(task: Any) -> bool:
    """Return whether a hydra task is FunASR's training entry, or a copy of it: by what it uses."""
    tables = getattr(sys.modules.get("funasr.register"), "tables", None)
    names = getattr(task, "__globals__", {})
    return tables is not None and names.get("tables") is tables and "Trainer" in names and "download_model" in names


def _with_hooks(hooks: Hooks, task: Any) -> Any:
    @functools.wraps(task)
    def main_hydra(cfg: Any) -> Any:
        run = Run(task.__globals__, _typed())
        try:
            with temporary.assigned(_RUN, run), _main_replaced(hooks, run):
                return task(_prepared(hooks, run, cfg))
        except BaseException as error:
            tracebacks.hide(error)
            raise

    return main_hydra


def _prepared(hooks: Hooks, run: Run, cfg: Any) -> Any:
    """Return the configuration after the hooks; the very same object where they changed nothing."""
    from omegaconf import OmegaConf

    run.cfg = OmegaConf.to_container(cfg, resolve=False)
    _call(hooks.before_download, run)
    if run.cfg == OmegaConf.to_container(cfg, resolve=False):
        return cfg
    changed = OmegaConf.create(run.cfg)
    OmegaConf.set_struct(changed, bool(OmegaConf.is_struct(cfg)))
    return changed


@contextlib.contextmanager
def _main_replaced(hooks: Hooks, run: Run) -> Iterator[None]:
    """While the entry runs, its own ``main`` is the one that calls the hooks first."""
    original = run.namespace["main"]

    @functools.wraps(original)
    def main(**kwargs: Any) -> Any:
        run.kwargs = kwargs
        _call(hooks.before_main, run)
        with contextlib.ExitStack() as stack:
            for factory in list(hooks.around_main):
                stack.enter_context(factory(run))
            return original(**run.kwargs)

    run.namespace["main"] = main
    try:
        yield
    finally:
        if run.namespace.get("main") is main:
            run.namespace["main"] = original


def _call(hooks: List[Hook], run: Run) -> None:
    for hook in list(hooks):
        try:
            hook(run)
        except ValueError:
            # Raised on purpose: a setting that is invalid, or cannot work here.
            raise
        except Exception as error:
            log.warning(f"{hook.__module__} could not read the configuration and left it unchanged: {error!r}")


def _typed() -> Dict[str, str]:
    """Return the overrides on the command line, without hydra's plus signs."""
    from hydra.core.hydra_config import HydraConfig

    if not HydraConfig.initialized():
        return {}
    pairs = (str(text).lstrip("+").partition("=") for text in HydraConfig.get().overrides.task)
    return {key.strip(): value for key, sign, value in pairs if sign}


def plain(value: Any) -> Any:
    """Return a container of OmegaConf as dicts and lists, which take new keys (hydra's does not); others unchanged."""
    from omegaconf import Container, OmegaConf

    return OmegaConf.to_container(value, resolve=True) if isinstance(value, Container) else value


def section(config: Mapping[str, Any], name: str) -> Dict[str, Any]:
    """Return a copy of the section ``name`` (``train_conf``, ...) as a plain dict; empty where there is none."""
    value = plain(config.get(name))
    return dict(value) if isinstance(value, dict) else {}


def merged(below: Any, above: Any) -> Any:
    """``below`` overridden by ``above``; dicts are merged, other values replaced. Changes neither."""
    below, above = plain(below), plain(above)
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    both = {key: merged(below[key], value) if key in below else value for key, value in above.items()}
    return {**below, **both}


def leaves(config: Any, prefix: str = "") -> Iterator[Tuple[str, Any]]:
    """(dotted key, value) of everything that is not a dict."""
    for key, value in plain(config).items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def truth(value: Any, key: str) -> Optional[bool]:
    """True, False, or None where nothing is set; a quoted "false" means what it says. ValueError: none of these."""
    if value is None:
        return None
    known = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
    word = str(value).strip().strip("'\"").lower()
    if word not in known:
        raise ValueError(f"{key}={value!r}: use true or false (or 1, 0)")
    return known[word]
