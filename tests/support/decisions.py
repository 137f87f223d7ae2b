"""The decision about every patch at every version, as data: ``python -m tests.support.decisions`` writes it anew.

The versions are the released ones, and around each end of a range the ones that compare in a special way:
development and release candidates, post-releases, builds with a local part. The file has them, and they are kept.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ddpfix.matrix import loader, resolve
from ddpfix.matrix.model import Matrix, Patch, Target
from ddpfix.settings import reading

FILE = Path(__file__).parents[1] / "unit" / "fixtures" / "decisions.json"
# The first and the last version of a run, and what is decided about all of them.
Run = List[Any]


def variants(end: str) -> Iterator[str]:
    """Versions around the end of a range."""
    base = Version(end).base_version
    suffixes = (".dev0", ".dev1", "a0", "rc1", "rc1.dev2", "", "+cpu", "+cu121.git1", ".post1.dev0", ".post1")
    yield from (base + suffix for suffix in suffixes)


def snapshot(whole: Matrix, versions: Mapping[str, Sequence[str]]) -> Dict[str, Any]:
    """One entry a patch."""
    known = with_new(whole, versions)
    return {name: _patch(whole, whole.patches[name], known) for name in sorted(whole.patches)}


def with_new(whole: Matrix, versions: Mapping[str, Sequence[str]]) -> Dict[str, List[str]]:
    """These versions, and for a toolkit that has none yet those around each end of its ranges, and the tested ones."""
    found = {toolkit: list(texts) for toolkit, texts in versions.items()}
    for toolkit in sorted({patch.toolkit for patch in whole.patches.values()} - set(found)):
        rows = [row for row in whole.rows if whole.patches[row.patch].toolkit == toolkit]
        ends = {clause.version for row in rows for clause in SpecifierSet(str(row.versions))}
        texts = {text for end in ends for text in variants(end)} | {str(v) for row in rows for v in row.tested}
        found[toolkit] = sorted(texts, key=lambda text: (Version(text), text))
    return found


def _patch(whole: Matrix, patch: Patch, versions: Mapping[str, Sequence[str]]) -> Dict[str, Any]:
    known = sorted(versions[patch.toolkit], key=lambda text: (Version(text), text))
    usual = [(version, _decided(whole, patch, version, "1")) for version in known]
    forced = [(version, _decided(whole, patch, version, "force")) for version in known]
    changed = [one if one[1] != other[1] else (one[0], None) for one, other in zip(forced, usual)]
    return {
        "toolkit": patch.toolkit,
        "setting": patch.setting,
        "when": list(patch.when),
        "default": patch.default,
        "needs": list(patch.needs),
        "decided": _runs([(version, decided[:-2]) for version, decided in usual]),
        "tested": [version for version, decided in usual if decided[0] == "apply" and decided[-2]],
        "forced": [run for run in _runs(changed) if run[2] is not None],
    }


def _decided(whole: Matrix, patch: Patch, version: str, switch: str) -> List[Any]:
    """[action, reason, targets, tested, forced], where the settings request the patch."""
    arguments: Dict[str, object] = {patch.id: switch}
    if patch.setting is not None and patch.when:
        arguments[patch.setting] = patch.when[0]
    chosen = reading.read(arguments, whole.patches, {})
    found = resolve.decide(whole, patch, {patch.toolkit: version}, chosen)
    reason = found.reason.replace(f"{patch.toolkit} {Version(version)}", "{version}")
    targets = [_target(target) for target in found.row.targets] if found.row is not None else []
    return [str(found.action), reason, targets, found.tested, found.forced]


def _target(target: Target) -> str:
    expects = f"({', '.join(target.expects)})" if target.expects else ""
    return f"{'before ' if target.before else ''}{target}{expects}"


def _runs(decided: Sequence[Tuple[str, Any]]) -> List[Run]:
    runs: List[Run] = []
    for version, decision in decided:
        if runs and runs[-1][2] == decision:
            runs[-1][1] = version
        else:
            runs.append([version, version, decision])
    return runs


def dumped(versions: Mapping[str, Sequence[str]], patches: Mapping[str, Any]) -> str:
    """The file: a line for each toolkit, each run and each other fact."""

    def lines(entry: Mapping[str, Any]) -> Iterator[str]:
        for key, value in entry.items():
            if key in ("decided", "forced") and value:
                runs = ",\n".join(f"   {json.dumps(run)}" for run in value)
                yield f'  "{key}": [\n{runs}\n  ]'
            else:
                yield f'  "{key}": {json.dumps(value)}'

    known = ",\n".join(f" {json.dumps(name)}: {json.dumps(list(texts))}" for name, texts in versions.items())
    found = ",\n".join(f" {json.dumps(name)}: {{\n" + ",\n".join(lines(e)) + "\n }" for name, e in patches.items())
    return f'{{"versions": {{\n{known}\n}},\n"patches": {{\n{found}\n}}}}\n'


if __name__ == "__main__":
    matrix = loader.load()
    kept = with_new(matrix, json.loads(FILE.read_text(encoding="utf-8"))["versions"])
    FILE.write_text(dumped(kept, snapshot(matrix, kept)), encoding="utf-8")
