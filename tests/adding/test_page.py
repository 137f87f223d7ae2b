"""docs/dev/adding-a-toolkit.md and adding-a-stage.md, followed step by step in copies of the checkout."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.adding.checkout import ROOT, TESTS, add_to_matrix, blocks, commands, copied, packages, run, write

PAGE = ROOT / "docs" / "dev" / "adding-a-toolkit.md"
STAGE_PAGE = ROOT / "docs" / "dev" / "adding-a-stage.md"
ORDER = "patches/torch/pipeline/order.py"
METADATA = "Metadata-Version: 2.1\nName: toykit\nVersion: 1.0\n"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in which the page's files and its block of the matrix are."""
    here = tmp_path_factory.mktemp("adding") / "checkout"
    copied(here)
    files = blocks(PAGE)
    add_to_matrix(here, files.pop("compat_matrix.yaml"))
    installed = packages(here.parent / "env")
    for name, text in files.items():
        write(installed if name.startswith("toykit/") else here, name, text)
    write(installed, "toykit-1.0.dist-info/METADATA", METADATA)
    return here


def test_the_page_leads_to_a_toolkit_that_works(checkout: Path) -> None:
    tested, plan, explained, _, generated, _ = [run(checkout, words) for words in commands(PAGE)]
    noted = json.loads((checkout / "tests" / "results" / "toykit-1.0.json").read_text(encoding="utf-8"))
    assert noted["patches"] == ["toykit.layerdrop", "toykit.options"] and (noted["passed"], noted["failed"]) == (3, 0)
    assert re.search(r"toykit 1.0 .*makes all ranks skip the same layers of toykit's encoder .*toykit.layerdrop ", plan)
    assert re.search(r"passes find_unused_parameters on to DDP .*toykit.options ", plan)
    assert explained.startswith("ddpfix makes all ranks skip") and "ranks skip different layers" in explained
    assert "3 passed" in tested
    matrix = (checkout / "compat_matrix.yaml").read_text(encoding="utf-8")
    assert '\n  toykit:\n    release: "1.0"\n    code:\n      "toykit' in matrix
    readme = (checkout / "README.md").read_text(encoding="utf-8")
    assert "[toykit](docs/toykit.md) 1.0" in readme, generated
    decided = json.loads((checkout / "tests" / "unit" / "fixtures" / "decisions.json").read_text(encoding="utf-8"))
    assert "1.0" in decided["versions"]["toykit"] and "toykit.options" in decided["patches"]


@pytest.mark.sampled(inside=False)
def test_the_test_of_the_page_fails_without_the_patches(checkout: Path) -> None:
    """What the page's own tests show is the patches' work."""
    matrix = checkout / "compat_matrix.yaml"
    text = matrix.read_text(encoding="utf-8")
    away = text.replace('from: "1.0"\n        to: "2.0"', 'from: "3.0"\n        to: "4.0"')
    assert away.count('to: "4.0"') == text.count('to: "4.0"') + 2
    matrix.write_text(away, encoding="utf-8")
    try:
        with pytest.raises(AssertionError, match="1 failed"):
            run(checkout, ["python", "-m", "pytest", "tests/toykit", "-k", "in_step"])
    finally:
        matrix.write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in which the four places of the page about stages are."""
    here = tmp_path_factory.mktemp("stage") / "checkout"
    copied(here, (*TESTS, "conftest.py", "later.py"))
    files = blocks(STAGE_PAGE)
    assert list(files) == [
        "patches/torch/data/empty_batches.py",
        ORDER,
        "compat_matrix.yaml",
        "tests/late/test_empty_batches.py",
    ]
    add_to_matrix(here, files.pop("compat_matrix.yaml"))
    order = (here / ORDER).read_text(encoding="utf-8")
    write(here, ORDER, order.replace("ORDER = (\n", "ORDER = (\n" + files.pop(ORDER), 1))
    for name, text in files.items():
        write(here, name, text)
    packages(here.parent / "env")
    return here


def test_the_page_leads_to_a_stage_that_works(stage: Path) -> None:
    tested, explained, _, _ = [run(stage, words) for words in commands(STAGE_PAGE)]
    assert "2 passed" in tested
    assert "torch.empty_batches" in explained and "DDPFIX_TORCH_EMPTY_BATCHES" in explained
    decided = json.loads((stage / "tests" / "unit" / "fixtures" / "decisions.json").read_text(encoding="utf-8"))
    assert "torch.empty_batches" in decided["patches"]
    page = (stage / "docs" / "versions.md").read_text(encoding="utf-8")
    assert "## torch.empty_batches" in page
