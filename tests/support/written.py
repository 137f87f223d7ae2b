"""Makes a class from its text."""

from __future__ import annotations

import linecache
from typing import Any, Dict, cast


def written(name: str, text: str, scope: Dict[str, Any]) -> type:
    """Return a class from its text, whose source is where that of any file is looked for."""
    file = f"{scope['__file__']}:{name}"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    exec(compile(text, file, "exec"), scope)
    return cast(type, scope[name])
