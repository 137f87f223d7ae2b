"""The kinds of values in ``compat_matrix.yaml``: each function makes one of a node, or fails there."""

from __future__ import annotations

import re
from typing import Dict, List, Optional

from packaging.version import Version

from ddpfix.matrix import loader
from ddpfix.matrix.compiling.nodes import Node, Plain
from ddpfix.settings.reading import SETTINGS

_CODE = re.compile(r"[a-z_]\w*(\.[a-z_]\w*)*:[a-z_]\w*")
_INSIDE = r"\w[\w.-]*(/\w[\w.-]*)*"


def mark(node: Node) -> Plain:
    what = "not a path in the package; write it like 'utils/executor.py'"

    def files(one: Node) -> List[str]:
        return [item.matching(_INSIDE, what) for item in one.items()]

    def words(one: Node) -> List[List[str]]:
        return [[item.matching(_INSIDE, what, file), item.text()] for file, item in one.mapping().items()]

    kinds = {"files": files, "no_files": files, "words": words, "no_words": words}
    found = node.record({"version": lambda one: str(one.version())}, kinds)
    if "files" not in found and "words" not in found:
        node.fail("a mark needs files or words that are there; without them it would hold for every package")
    return found


def when(node: Node, name: Optional[str]) -> List[str]:
    """Return the values of a setting with which a patch is wanted."""
    if name is None:
        node.fail("when needs a setting beside it")
    values = next((*s.values, *([s.kind] if s.kind else [])) for s in SETTINGS if s.name == name)
    return [item.known(values, f"value of {name}") for item in node.items()]


def instead(node: Node, when: List[str]) -> Dict[str, str]:
    """Values that the toolkit does not have, and the ones of its own that replace them."""
    entries = node.mapping(optional=when)
    own = [value for value in when if value not in entries]
    return {name: item.known(own, f"value in place of {name}") for name, item in entries.items()}


def hashes(node: Node) -> List[str]:
    what = "no hash of code; expected 12 hexadecimal digits, quoted"
    return [item.matching("[0-9a-f]{12}|absent", what) for item in node.items()]


def bound(node: Node) -> Version:
    found = node.version()
    if found.local:
        node.fail(f"{found} has a local part, and a range ends with none; write it like '4.57.6'")
    return found


def code(node: Node) -> str:
    code = node.text()
    if not _shipped(code):
        node.fail(f"code {code!r} is not shipped; write it like 'toolkit.file:function', in patches/")
    return code


def call(node: Node, patch: Plain) -> str:
    name, file = node.text(), patch["code"].partition(":")[0]
    if not _shipped(f"{file}:{name}"):
        where = f"patches/{file.replace('.', '/')}.py" if file else "the file of the patch's code, which is missing"
        node.fail(f"call {name!r} is not shipped; write the name of a function in {where}")
    return name


def _shipped(code: str) -> bool:
    """Return whether patches/ has this function. Only names below ddpfix.patches are accepted; nothing is imported."""
    if not _CODE.fullmatch(code):
        return False
    module, _, function = code.partition(":")
    file = loader.patches().joinpath(*module.split(".")).with_suffix(".py")
    return file.is_file() and f"\ndef {function}(" in file.read_text(encoding="utf-8")
