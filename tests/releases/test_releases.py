"""Real releases from the registry that pip is set up for. What is expected was read in the toolkits' histories."""

from __future__ import annotations

import json
from typing import Any, Dict, List

import pytest
from packaging.version import Version

from ddpfix.matrix import loader
from tests.releases.command import main


def rows(capsys: Any, *words: str) -> Dict[str, Dict[str, Any]]:
    """The rows of one release, by patch."""
    code = main([*words, "--json"])
    (release,) = json.loads(capsys.readouterr().out)["releases"]
    found = {row["patch"]: row for row in release["rows"]}
    assert code == int(any(row["verdict"] != "holds" for row in found.values()))
    return found


def states(row: Dict[str, Any]) -> Dict[str, str]:
    return {place["at"]: place["state"] for place in row["places"]}


@pytest.mark.sampled(inside=False, cells=True)
def test_an_old_funasr(capsys: Any) -> None:
    """The loop over an epoch was a method without arguments for the model."""
    found = rows(capsys, "funasr==1.0.19", "--against", "1.4.16")
    assert found["funasr.layerdrop"]["verdict"] == "holds"
    epoch = "funasr.train_utils.trainer:Trainer.train_epoch"
    assert states(found["funasr.accumulation"])[epoch] == "changed"
    examined = found["funasr.unused"]["places"]
    assert {"SeacoParaformer", "ContextualParaformer"} <= {
        place["message"].split()[-1] for place in examined if place["state"] == "same"
    }


def test_an_sdist_of_fastnlp(capsys: Any) -> None:
    """It is on the registry as an sdist only; 1.0.1 changed none of the places."""
    found = rows(capsys, "fastNLP==1.0.0", "--against", "1.0.1")
    assert {row["verdict"] for row in found.values()} == {"holds"} and len(found) == 6
    older = rows(capsys, "fastNLP==0.7.0", "--against", "1.0.1")
    assert "gone" in {state for row in older.values() for state in states(row).values()}


def test_an_untested_accelerate_between_two_tested_ones(capsys: Any) -> None:
    row = rows(capsys, "accelerate==1.14.0")["accelerate.intent"]
    tested = sorted({version for row in loader.load().rows_of("accelerate.intent") for version in row.tested})
    before = max(version for version in tested if version < Version("1.14.0"))
    after = min(version for version in tested if version > Version("1.14.0"))
    assert row["position"] == "inside" and row["against"] == [str(before), str(after)]


@pytest.mark.sampled(inside=False, cells=True)
def test_a_transformers_between_two_tested_ones(capsys: Any) -> None:
    found = rows(capsys, "transformers==5.22.2")
    assert found["transformers.sharded"]["verdict"] == "holds"
    assert states(found["transformers.layerdrop"])["transformers.models.wavlm.modeling_wavlm:WavLMEncoder.forward"]


@pytest.mark.sampled(inside=False, cells=True)
def test_of_torch_only_what_is_compared_is_fetched(capsys: Any, monkeypatch: Any) -> None:
    """A wheel of it has half a gigabyte; each module of it is a request."""
    from tests.releases.tree import Tree

    read: List[str] = []
    source = Tree.source

    def noted(self: Tree, module: str) -> str:
        read.append(module)
        return source(self, module)

    monkeypatch.setattr(Tree, "source", noted)
    found = rows(capsys, "torch==2.12.0", "--against", "2.13.0")
    assert found["torch.init_file"]["verdict"] in ("holds", "look")
    assert len(set(read)) < 60
