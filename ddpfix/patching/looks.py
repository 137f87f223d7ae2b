"""How the places of patches look in tested releases, by hashes of their code: ``DDPFIX_UNTESTED=apply`` asks for it.

``looks.json`` beside this file is written by ``python -m tests.support.looks``, in an environment with the release.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import os
import sys
import textwrap
from functools import lru_cache, reduce
from types import ModuleType
from typing import Any, Dict, List, Optional, Sequence

from ddpfix.patching.site import PatchError
from ddpfix.patching.source_hash import canonical

FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "looks.json")


@lru_cache(maxsize=None)
def known() -> Dict[str, Dict[str, List[str]]]:
    """Return, by place (``module:attribute``) and hash, the releases in which the place looks so."""
    with open(FILE, encoding="utf-8") as file:
        return json.load(file)  # type: ignore[no-any-return]


def of(module: ModuleType, attribute: str) -> Optional[str]:
    """Return a hash of a function, a class or (``*``) a module; None where there is no source.

    Args:
        module: has it.
        attribute: its path in the module.
    """
    try:
        found: Any = module if attribute == "*" else reduce(getattr, attribute.split("."), module)
        text = textwrap.dedent(inspect.getsource(inspect.unwrap(found) if callable(found) else found))
        return hashlib.sha256(canonical(ast.parse(text)).encode()).hexdigest()[:12]
    except (AttributeError, OSError, TypeError, SyntaxError, ValueError):
        return None


def is_examined(module: ModuleType, attribute: str) -> bool:
    """Return whether a place looks as in one of the releases that were tested."""
    return of(module, attribute) in known().get(f"{module.__name__}:{attribute}", {})


def refuse_unlike(nearest: str, module: ModuleType, attribute: str, also: Sequence[str]) -> None:
    """Raise PatchError where a place of a patch does not look as in a release that was tested.

    Args:
        nearest: that release.
        module: in which the patch is put in place.
        attribute: where in it.
        also: what it changes beside that; of these, the places in modules that have been imported are looked at.

    Raises:
        PatchError: it, or one of the others, looks different, or was never noted.
    """
    if not is_examined(module, attribute):
        raise PatchError(f"it does not look as in {nearest}")
    for place in also:
        name, _, path = place.partition(":")
        beside = sys.modules.get(name) if " " not in place and "*" not in place else None
        if beside is not None and not is_examined(beside, path):
            raise PatchError(f"{place} does not look as in {nearest}")
