"""Lists of utterances (jsonl): their lengths must be there, and what a limit leaves out on reading is counted."""

from __future__ import annotations

import json
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Dict, Iterator, List, MutableMapping, Tuple
from weakref import WeakKeyDictionary

from ddpfix import log
from ddpfix.patching import temporary
from ddpfix.patching.site import PatchError, Site
from ddpfix.settings.reading import switch_name


class LeftOut:
    """How many utterances each limit left out, by index dataset."""

    def __init__(self) -> None:
        self.by_index: MutableMapping[Any, Dict[str, int]] = WeakKeyDictionary()

    def of(self, dataset: Any) -> Dict[str, int]:
        """Return the number of samples that the limits of a dataset's index left out, by limit."""
        index = getattr(dataset, "index_ds", None)
        return self.by_index.get(index, {}) if index is not None else {}


class _Reader(temporary.LookAlike):
    """Stands for the ``json`` module while a list is read, and inspects every line that passes."""

    def __init__(self, below: Any) -> None:
        super().__init__(below, {})
        self.lines = 0
        self.without = 0
        self.lengths: List[Tuple[float, float]] = []

    def loads(self, text: Any, *args: Any, **kwargs: Any) -> Any:
        data = self._original.loads(text, *args, **kwargs)
        if isinstance(data, dict) and "source" in data:
            self.lines += 1
            self.without += "source_len" not in data
            self.lengths.append((data.get("source_len", 1), data.get("target_len", 0)))
        return data


@contextmanager
def _reading(module: ModuleType) -> Iterator[_Reader]:
    """The module reads through us for as long as one list takes."""
    reader = _Reader(vars(module)["json"])
    with temporary.replaced(module, "json", reader):
        yield reader


def _readable(module: ModuleType) -> None:
    if getattr(vars(module).get("json"), "loads", None) is not json.loads:
        raise PatchError(f"{module.__name__} does not read its lists by json.loads any more")


def refuse(site: Site, module: ModuleType, owner: Any) -> None:
    """A list without ``source_len`` is refused where lengths decide about batches (upstream 1828)."""
    _readable(module)

    def read(wrapped: Any, instance: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        with _reading(module) as reader:
            wrapped(*args, **kwargs)
        if reader.without:
            _judge(args[0] if args else kwargs.get("path"), reader, kwargs, site.patch)

    site.wrap(owner, "__init__", read)


def _judge(path: Any, reader: _Reader, conf: Dict[str, Any], patch: str) -> None:
    missing = f"{path}: {reader.without} of {reader.lines} utterances have no source_len"
    advice = "Write the list with FunASR's scp2jsonl, which adds it"
    if _lengths_decide(conf):
        raise ValueError(
            f"ddpfix: {missing}, so FunASR counts each as one frame and batch_size has no effect. {advice}, or set"
            f" {switch_name(patch)}=0 to train anyway."
        )
    log.warning(f"{missing}, so length limits (max_token_length) do not apply to them. {advice}.")


def _lengths_decide(conf: Dict[str, Any]) -> bool:
    """Return whether batches are made by length: every kind of batch_type but ``example``."""
    sorting = str(conf.get("batch_sampler", "")).startswith("Espnet")
    return str(conf.get("batch_type", "token" if sorting else "example")) != "example"


def count(site: Site, module: ModuleType, owner: Any) -> None:
    """Count what the limits of the index leave out while it reads a list (upstream 1843, 2723)."""
    _readable(module)
    left_out = site.keep(LeftOut)

    def read(wrapped: Any, instance: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        with _reading(module) as reader:
            wrapped(*args, **kwargs)
        counts = _counted(instance, reader)
        if counts:
            left_out.by_index[instance] = counts

    site.wrap(owner, "__init__", read)


def _counted(index: Any, reader: _Reader) -> Dict[str, int]:
    """Return how many utterances each limit left out; one that is over several counts for the first."""
    counts: Dict[str, int] = {}
    limits = {name: getattr(index, name, None) for name in _CHECKS}
    for source, target in reader.lengths:
        for name, over in _CHECKS.items():
            if limits[name] is not None and over(source, target, limits[name]):
                key = f"{name}={limits[name]}"
                counts[key] = counts.get(key, 0) + 1
                break
    return counts


_CHECKS: Dict[str, Any] = {
    "min_source_length": lambda source, target, limit: source < limit,
    "max_source_length": lambda source, target, limit: source > limit,
    "min_target_length": lambda source, target, limit: target < limit,
    "max_target_length": lambda source, target, limit: target > limit,
    "max_token_length": lambda source, target, limit: source + target > limit,
}
