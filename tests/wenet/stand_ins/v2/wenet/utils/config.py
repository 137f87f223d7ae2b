"""``override_config`` with WeNet's signature and faults: two words only, and the old value's type is called."""

from __future__ import annotations

import copy
from typing import Any, Dict, List


def override_config(configs: Dict[str, Any], override_list: List[str]) -> Dict[str, Any]:
    changed = copy.deepcopy(configs)
    for words in (item.split() for item in override_list):
        if len(words) == 2:
            _set(changed, words[0].split("."), words[1])
    return changed


def _set(section: Dict[str, Any], parts: List[str], text: str) -> None:
    for part in parts[:-1]:
        section = section[part]
    kind = type(section[parts[-1]])
    section[parts[-1]] = text in ("true", "True") if kind is bool else kind(text)
