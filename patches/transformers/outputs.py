"""Makes the outputs of a model visible to DDP.

With ``find_unused_parameters`` DDP leads every output through a node of its own, so that an output outside of the loss
gets a gradient of zeros. It takes the output apart with torch's pytree, and before 4.33 transformers does not
register ``ModelOutput`` there: in a step in which all decoder layers are skipped, the encoder's output (returned,
but behind nothing that reaches the loss) leaves the reduction unfinished although the flag is set.
"""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any, Dict, Iterator, List, Tuple

from torch.utils import _pytree as pytree

from ddpfix.models import wrap_hooks
from ddpfix.patching.site import Site


def tree(site: Site, module: ModuleType, owner: Any) -> None:
    """Register the classes of outputs that exist when a model is wrapped."""
    wrap_hooks.before_wrap(site, lambda model: _register(site))


def _register(site: Site) -> None:
    from transformers.utils import ModelOutput

    known: Dict[Any, Any] = pytree.SUPPORTED_NODES
    for kind in _subclasses(ModelOutput):
        if kind not in known:
            with warnings.catch_warnings():
                # Newer releases of torch ask for their public function, whose registration cannot be undone.
                warnings.simplefilter("ignore")
                pytree._register_pytree_node(kind, _take_apart, _put_together)
            site.at_undo(lambda kind=kind: known.pop(kind, None))  # type: ignore[misc]


def _subclasses(kind: Any) -> Iterator[Any]:
    for below in kind.__subclasses__():
        yield below
        yield from _subclasses(below)


def _take_apart(output: Any) -> Tuple[List[Any], Any]:
    return list(output.values()), (type(output), list(output.keys()))


def _put_together(values: List[Any], context: Any) -> Any:
    kind, names = context
    return kind(**dict(zip(names, values)))
