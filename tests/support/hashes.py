"""Writes what the code of places is in the newest tested releases: ``python -m tests.support.hashes``.

It replaces the part ``hashes:`` of ``compat_matrix.yaml`` for each toolkit of which that release is installed here.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from typing import Dict, Iterator

from packaging.version import Version

from ddpfix.matrix import detect, loader
from ddpfix.matrix.model import Matrix
from ddpfix.patching import source_hash
from tests.support import compiled
from tests.support.compiled import YAML

HEADING = "hashes: # written by python -m tests.support.hashes, where a toolkit's newest tested release is installed"


def places(whole: Matrix, toolkit: str) -> Iterator[str]:
    """What the last rows name in the packages of a toolkit, and what their patches change beside; no families."""
    for patch in whole.patches.values():
        row = whole.rows_of(patch.id)[-1]
        for place in (*map(str, row.targets), *patch.also) if row.status == "cured" else ():
            module = place.partition(":")[0]
            if " " not in place and "*" not in module and whole.toolkits.get(_top(module)) == whole.toolkits[toolkit]:
                yield place


def _top(module: str) -> str:
    return module.partition(".")[0]


def noted(whole: Matrix, toolkit: str) -> Dict[str, str]:
    """The hashes of these places in what is installed; a place that is not there has none."""
    found: Dict[str, str] = {}
    for place in sorted(set(places(whole, toolkit))):
        module, _, attribute = place.partition(":")
        try:
            seen = source_hash.of_place(importlib.import_module(module), attribute)
        except Exception as error:
            sys.stderr.write(f"{module}: {error!r}\n")
            continue
        if seen is not None:
            found[place] = seen
    return found


def main() -> None:
    whole, text = loader.load(), YAML.read_text(encoding="utf-8")
    before, _, rest = text.partition("\nhashes:")
    own, _, after = rest.partition("\ntested:")
    releases = dict(re.findall(r'^  (\w+):\n    release: "(.*)"$', own, re.MULTILINE))
    known = {toolkit: {p: whole.hashes[p] for p in places(whole, toolkit) if p in whole.hashes} for toolkit in releases}
    for toolkit in sorted({patch.toolkit for patch in whole.patches.values()}):
        version = detect.installed_versions(whole).get(toolkit)
        if version and _public(version) == whole.newest.get(toolkit):
            known[toolkit], releases[toolkit] = noted(whole, toolkit), whole.newest[toolkit]
    lines = [HEADING]
    for toolkit, hashes in sorted(known.items()):
        lines += [f"  {toolkit}:", f"    release: {json.dumps(releases[toolkit])}", "    places:"]
        lines += [f"      {json.dumps(place)}: {json.dumps(found)}" for place, found in sorted(hashes.items())]
    made = "\n".join(lines)
    YAML.write_text(f"{before}\n{made}\n\ntested:{after}", encoding="utf-8")
    compiled.anew()


def _public(version: str) -> str:
    try:
        return Version(version).public
    except ValueError:
        return ""


if __name__ == "__main__":
    main()
