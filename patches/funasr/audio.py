"""Audio that cannot be read is named where FunASR's error tells only of what follows from it.

Older releases take a path that does not exist for samples. The datasets of SenseVoice and of the LLMs log the error and
go on without the utterance; where a batch has none left, SenseVoice trains on random noise in its place.
"""

from __future__ import annotations

import contextlib
import inspect
import mmap
import os
import sys
import traceback
from typing import Any, Dict, Iterator, Optional, Tuple

from ddpfix import log
from ddpfix.monitor.exit.last_words import explained
from ddpfix.patching import temporary
from ddpfix.patching.site import Site

_READER = "load_audio_text_image_video"
# The shape of the noise that SenseVoice's collators make.
_NOISE = (1, 10, 128)
_LIMITS = "Each utterance is over a limit of the dataset (dataset_conf.batch_size, max_token_length)"
_INSTEAD = ", so FunASR trains on random noise"
_LONGEST = 1000


class Unread:
    """What this rank could not read; the page is shared with the workers that are forked from it."""

    def __init__(self, page: Any) -> None:
        self._page = page
        # Of the utterance that is being read, of its batch, and of the last batch that became noise.
        self.utterance = self.batch = self.noise = ""

    def load(self, wrapped: Any, instance: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        source = args[0] if args else None
        try:
            result = wrapped(*args, **kwargs)
        except Exception as error:
            self._note(source, f"cannot be read ({type(error).__name__}: {str(error)[:80]})")
            raise
        self.utterance = ""
        if result is source and kwargs.get("data_type") in (None, "sound"):
            self._note(source, "cannot be read")
        return result

    def _note(self, source: Any, how: str) -> None:
        if isinstance(source, str):
            self.utterance = f"Audio file '{source}' {how if os.path.exists(source) else 'does not exist'}"
            self.batch = self.batch or self.utterance

    def item(self, wrapped: Any, instance: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        self.utterance = ""
        with explained(lambda error: self.utterance):
            return wrapped(*args, **kwargs)

    def collate(self, wrapped: Any, instance: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        samples, why = next(iter((*args, *kwargs.values())), None), self.batch
        if self.noise:
            log.on_every_rank(f"{self.noise} (rank {os.environ.get('RANK', '0')})")
        self.batch = self.noise = ""
        if not isinstance(samples, list) or any(sample is not None for sample in samples):
            return wrapped(*args, **kwargs)
        why = f"{why or _LIMITS}. The batch has no usable utterance"
        self._page[:] = why.encode()[:_LONGEST].ljust(_LONGEST)
        with explained(lambda error: why):
            batch = wrapped(*args, **kwargs)
        self.noise = f"{why}{_INSTEAD}" if _is_noise(batch) else ""
        return batch

    def why(self, error: BaseException) -> Optional[str]:
        """Return why an error was raised, if a batch without any utterance was trained on."""
        why = bytes(self._page).strip(b" \0").decode(errors="ignore")
        if not why:
            return None
        found = [frame.f_locals.get("batch") for frame, _ in traceback.walk_tb(error.__traceback__)]
        batches = [batch for batch in found if isinstance(batch, dict) and (not batch or _is_noise(batch))]
        return f"{why}{_INSTEAD if batches[0] else ''}" if batches else None


def _is_noise(batch: Dict[str, Any]) -> bool:
    return tuple(getattr(batch.get("speech"), "shape", ())) == _NOISE


@contextlib.contextmanager
def named(parent: Site, tables: Any, dataset: str) -> Iterator[None]:
    """While ``main`` runs, watch what its dataset reads: the class of this name in FunASR's tables."""
    kind = _reading(getattr(tables, "dataset_classes", {}).get(dataset))
    unread = Unread(mmap.mmap(-1, _LONGEST))
    with temporary.patched(parent) as site:
        if kind is not None:
            site.wrap(sys.modules["funasr.utils.load_utils"], _READER, unread.load)
            for name, wrapper in (("__getitem__", unread.item), ("collator", unread.collate)):
                site.wrap(kind, name, wrapper)
        with explained(unread.why):
            yield


def _reading(kind: Any) -> Optional[Any]:
    """Return the class of a dataset, if it reads utterances one by one by FunASR's own function."""
    read = hasattr(sys.modules.get("funasr.utils.load_utils"), _READER)
    return kind if read and inspect.isclass(kind) and {"__getitem__", "collator"} <= set(dir(kind)) else None
