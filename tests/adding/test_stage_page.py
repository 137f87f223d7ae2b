"""docs/dev/adding-a-stage.md, followed step by step in a copy of the checkout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.adding.checkout import ROOT, TESTS, add_to_matrix, blocks, commands, copied, packages, run, write

PAGE = ROOT / "docs" / "dev" / "adding-a-stage.md"
ORDER = "patches/torch/pipeline/order.py"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in which the page's four places are."""
    here = tmp_path_factory.mktemp("stage") / "checkout"
    copied(here, (*TESTS, "conftest.py", "later.py"))
    files = blocks(PAGE)
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


def test_the_page_leads_to_a_stage_that_works(checkout: Path) -> None:
    tested, explained, _, _ = [run(checkout, words) for words in commands(PAGE)]
    assert "2 passed" in tested
    assert "torch.empty_batches" in explained and "DDPFIX_TORCH_EMPTY_BATCHES" in explained
    decided = json.loads((checkout / "tests" / "unit" / "fixtures" / "decisions.json").read_text(encoding="utf-8"))
    assert "torch.empty_batches" in decided["patches"]
    page = (checkout / "docs" / "versions.md").read_text(encoding="utf-8")
    assert "## torch.empty_batches" in page
