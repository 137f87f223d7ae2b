"""Ranks get the right batches from their samplers in two corner cases (all releases; 0.5.14 and later).

``DistributedSamplerWrapper`` picks with ``itemgetter``, which gives no tuple for a single item: with exactly one batch
a rank it yields that batch's indices as if each were a batch, and with a sampler of indices it dies. And a Brain
without hparams dies under DDP because ``sorting`` is looked up in ``self.hparams``.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any, Callable, Iterator

from ddpfix.patching import checks, temporary
from ddpfix.patching.site import Site


def single(site: Site, module: ModuleType, owner: Any) -> None:
    """``DistributedSamplerWrapper.__iter__`` with less than two items a rank."""
    checks.needs_names(owner, "__iter__", "itemgetter", "sampler")

    def make(original: Any) -> Callable[..., Any]:
        def __iter__(self: Any) -> Iterator[Any]:
            if self.num_samples > 1:
                return original(self)  # type: ignore[no-any-return]
            given = list(self.sampler)
            return iter([given[index] for index in super(owner, self).__iter__()])

        return __iter__

    site.wrap_hot(owner, "__iter__", make)


def no_hparams(site: Site, module: ModuleType, owner: Any) -> None:
    """``Brain._train_loader_specifics`` finds hparams without anything in it."""
    checks.needs_names(owner, "_train_loader_specifics", "hparams", "sorting")

    def specifics(wrapped: Any, brain: Any, args: Any, kwargs: Any) -> Any:
        if hasattr(brain, "hparams"):
            return wrapped(*args, **kwargs)
        with temporary.replaced(brain, "hparams", SimpleNamespace()):
            return wrapped(*args, **kwargs)

    site.wrap(owner, "_train_loader_specifics", specifics)
