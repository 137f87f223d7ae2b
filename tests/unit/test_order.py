"""The order of the matrix's toolkits, patches and keys decides nothing."""

from __future__ import annotations

import random
from itertools import combinations
from pathlib import Path
from typing import Any, Dict, List, Optional, Set

import pytest
import yaml
from ddpfix.patches.torch.pipeline import order

from ddpfix.matrix import compiled, loader, resolve
from ddpfix.matrix.compiling import write
from ddpfix.matrix.compiling.reader import Reader
from ddpfix.matrix.model import Matrix, Patch
from ddpfix.settings.reading import read
from tests.support import tested
from tests.support.compiled import YAML

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
PLAIN: Any = yaml.load(YAML.read_text(encoding="utf-8"), Loader=_LOADER)
# A tested release, one between two tested ones, one in no row, and none.
INSTALLED: List[Dict[str, Optional[str]]] = [
    {"torch": "2.13.0", "transformers": "5.23.0", "accelerate": "1.15.0", "funasr": "1.4.16", "speechbrain": "1.1.2"},
    {"torch": "2.0.1+cu118", "transformers": "4.40.1", "funasr": "1.0.18", "speechbrain": "0.5.11", "fastNLP": "1.0.1"},
    {"torch": "1.12.1", "transformers": "9.0", "funasr": "1.0.5", "speechbrain": "1.0.2", "wenet": "3.1.0"},
    {"torch": "2.4.0", "wenet": "2.2.1", "fastNLP": "0.7.0", "accelerate": "0.1", "hydra": "1.3.2"},
]
CHOSEN: List[Dict[str, object]] = [
    {},
    {"unused": "late", "torch_finalize": "0", "layerdrop": "stock", "funasr_flag": "force"},
]


def shuffled(data: Any, chance: random.Random) -> Any:
    """The same data, each mapping in another order; rows and other lists stay as they are."""
    if isinstance(data, dict):
        names = list(data)
        chance.shuffle(names)
        return {name: shuffled(data[name], chance) for name in names}
    return [shuffled(item, chance) for item in data] if isinstance(data, list) else data


def decided(whole: Matrix, installed: Dict[str, Optional[str]], chosen: Dict[str, object]) -> Dict[str, Any]:
    found = resolve.resolve(whole, installed, read(chosen, whole.patches, {}))
    rows = {
        d.patch: None if d.row is None else (d.row.versions, d.row.status, d.row.targets, d.row.tested) for d in found
    }
    return {d.patch: (d.version, d.action, d.reason, d.tested, d.forced, rows[d.patch]) for d in found}


@pytest.mark.parametrize("seed", range(3))
def test_a_shuffled_matrix_says_the_same_and_is_compiled_to_the_same_decisions(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(yaml.dump(shuffled(PLAIN, random.Random(seed)), Dumper=_DUMPER, sort_keys=False), encoding="utf-8")
    shipped, whole = loader.load(), Reader(path).matrix()
    found = compiled.of(write.sealed(Reader(path).plain(), path.read_bytes()).encode())
    assert found is not None
    for installed in INSTALLED:
        for chosen in CHOSEN:
            assert decided(found[0], installed, chosen) == decided(shipped, installed, chosen)
    assert whole.toolkits == shipped.toolkits and whole.marks == shipped.marks and whole.patches == shipped.patches
    assert whole.order == found[0].order == shipped.order
    # What is generated from the matrix does not follow its order either.
    assert tested.block(tested.read(), whole) == tested.block(tested.read(), shipped)


# What the pipeline wraps for all patches has a written order of its own (patches/torch/pipeline/order.py).
_PIPELINE = (
    "torch.nn.parallel.distributed:DistributedDataParallel.",
    "torch.distributed.distributed_c10d:init_process_group",
    "torch.utils.checkpoint:CheckpointFunction.apply",
)


def test_patches_that_change_one_place_say_which_comes_first() -> None:
    whole = loader.load()
    at: Dict[str, Set[str]] = {}
    for row in whole.rows:
        for place in [*map(str, row.targets), *whole.patches[row.patch].also, *row.also]:
            if " " not in place and not place.startswith(_PIPELINE):
                at.setdefault(place, set()).add(row.patch)
    for place, patches in at.items():
        for one, other in combinations(sorted(patches), 2):
            # Two values of one setting exclude each other.
            if not _exclude(whole.patches[one], whole.patches[other]):
                assert other in _before(whole, one) or one in _before(whole, other), (place, one, other)


def _exclude(one: Patch, other: Patch) -> bool:
    return one.setting is not None and one.setting == other.setting and not set(one.when) & set(other.when)


def _before(whole: Matrix, patch: str) -> Set[str]:
    """What is put in place before a patch because it says so, or because what it is after says so."""
    own = whole.patches[patch].after
    return {*own, *(further for name in own for further in _before(whole, name))}


def test_an_id_is_a_file_and_the_name_of_its_stage() -> None:
    """``torch.x`` stands in ``x.py``, or in the file ``stage.py`` of the room ``x``; other stages help one."""
    words = {}
    for patch in loader.load().patches.values():
        if patch.toolkit == "torch":
            *_, room, file = patch.code.partition(":")[0].split(".")
            words[patch.id[len("torch.") :]] = room if file == "stage" else file
    assert words == {word: word for word in words} and len(words) > 10
    helpers = {"clock", "skipped_layers"}
    assert {*order.ORDER, *order.GROUP, *order.STEPS, *order.BACKWARD} - helpers <= set(words)
