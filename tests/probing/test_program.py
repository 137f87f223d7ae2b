"""What the probe finds of the models of a program, and the setting that follows."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any, Callable, Iterable, List

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ddpfix.layerdrop import cover
from ddpfix.probing.program import Program
from ddpfix.probing.result import Result, of_model
from tests.support import ddp_finding, ranks, zoo

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
SECOND, THIRD = ["second.weight", "second.bias"], ["third.weight", "third.bias"]


class Net(nn.Module):
    def __init__(self, forward: Any) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.run = forward

    def forward(self, x: Any) -> Any:
        return self.run(self, x)


def observed(
    forward: Callable[[Any, Any], Any], loss: Callable[[Any], Any], batches: Iterable[Any] = (X, X, X)
) -> Result:
    return ddp_finding.observed(Net(forward), batches, lambda output, batch: loss(output))


def test_why_a_parameter_gets_no_gradient() -> None:
    def forward(model: Any, x: Any) -> Any:
        with torch.no_grad():
            aside = model.second(x)
        return {"loss": model.first(x).sum(), "more": aside}

    found = observed(forward, lambda output: output["loss"])
    assert (found.steps, found.passes, found.trainable, found.under) == (3, 3, 6, "not under DDP")
    assert found.always == [*SECOND, *THIRD] and found.sometimes == {} and found.outside == []
    assert "no_grad" in found.why["second.weight"] and "third did not run in any" in found.why["third.bias"]
    assert found.setting == "find_unused_parameters=True" and "freeze second, third" in found.advice[0]


def test_an_output_outside_of_the_loss() -> None:
    def forward(model: Any, x: Any) -> Any:
        return model.second(model.first(x)).sum(), model.third(x)

    found = observed(forward, lambda output: output[0])
    assert found.always == found.outside == THIRD
    assert (found.setting, found.unused) == ("", "late") and "0.0 * output.sum()" in "".join(found.advice)
    assert observed(forward, lambda output: output[0] + output[1].sum()).always == []


def test_a_result_that_is_dropped_inside_of_the_model_is_no_output() -> None:
    def forward(model: Any, x: Any) -> Any:
        model.second(x)
        return model.third(model.first(x))

    found = observed(forward, lambda output: output.sum())
    assert found.always == SECOND and found.outside == [] and found.setting == "find_unused_parameters=True"


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_is_named_with_its_kind(reentrant: bool) -> None:
    def forward(model: Any, x: Any) -> Any:
        hidden = model.first(x)
        for _ in range(2):
            hidden = checkpoint(model.second, hidden, use_reentrant=reentrant)
        return model.third(hidden) if float(x[0, 0]) > 0 else hidden

    found = observed(forward, lambda output: output.sum(), [X, -X, X])
    assert found.checkpointing == [{"name": "second", "kind": "Linear", "reentrant": reentrant}]
    assert found.always == [] and list(found.sometimes) == THIRD
    assert found.twice == (SECOND if reentrant else [])
    assert any("use_reentrant=False" in line for line in found.advice) == reentrant


@pytest.mark.parametrize("name", ["wavlm", "bart"])
def test_what_skips_layers_is_what_the_flag_is_set_for(name: str) -> None:
    """The same list decides about the flag when DDP is built."""
    entry = zoo.tiny_model(name)
    model = entry.build(rate=0.25)

    def found() -> Result:
        return ddp_finding.observed(model, [entry.batch()], lambda output, batch: entry.loss(output))

    seen = found()
    assert [(skip["name"], skip["rate"]) for skip in seen.skips] == [(n, rate) for n, _, rate in cover.active(model)]
    assert seen.setting == "find_unused_parameters=True" and "skips layers" in seen.advice[0]
    zoo.set_rate(model, 0.0)
    silent = found()
    assert silent.skips == [] and silent.setting == ""


def test_the_result_is_data_and_text() -> None:
    entry = zoo.tiny_model("wavlm")
    batches = [entry.batch() for _ in range(4)]
    found = ddp_finding.observed(entry.build(), batches, lambda output, batch: entry.loss(output))
    data = json.loads(json.dumps(asdict(found)))
    assert data["model"] == "WavLMModel" and data["skips"][0]["rate"] == 0.5
    lines = of_model(data)
    text = "\n".join(lines)
    assert "encoder (WavLMEncoder): rate 0.5" in text and "find_unused_parameters=True" in text
    assert max(map(len, lines)) <= 120


def test_a_failure_of_the_probe_leaves_the_program_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any) -> Any:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(Program, "_model_of", fails)
    done: List[int] = []
    program, model = Program(1, fails, lambda: done.append(1)), nn.Linear(4, 4)
    program.start()
    model(X).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert str(program.failure) == "no such thing" and not done and program.results() == []
    assert not nn.modules.module._global_forward_hooks and not nn.modules.module._global_forward_pre_hooks


@pytest.mark.sampled(inside=False)
def test_nothing_of_it_is_imported_where_it_is_not_used() -> None:
    code = (
        "import ddpfix.auto, torch, sys; assert ddpfix.auto and ddpfix.report().active;"
        "assert [n for n in sys.modules if 'prob' in n and n.startswith('ddpfix')] == []"
    )
    environ = ranks.environment({"DDPFIX": "1"})
    subprocess.run([sys.executable, "-c", code], check=True, env=environ)
