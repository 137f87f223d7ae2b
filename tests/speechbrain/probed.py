"""SpeechBrain's own encoders as DDP sees them on two ranks, and the probe in one process; for torch elastic."""

from __future__ import annotations

from typing import Any, Callable, Dict

import torch
from torch import distributed

from tests.speechbrain import networks
from tests.support import ddp_finding, two_ranks

STEPS = 8


def _transformer(module: str, name: str, **more: Any) -> Callable[[], Any]:
    def make() -> Any:
        from importlib import import_module

        kind = getattr(import_module(f"speechbrain.lobes.models.transformer.{module}"), name)
        return kind(num_layers=4, nhead=2, d_model=16, dropout=0.0, layerdrop_prob=0.5, **more)

    return make


ENCODERS: Dict[str, Callable[[], Any]] = {
    "transformer": _transformer("Transformer", "TransformerEncoder", d_ffn=24),
    "beats": lambda: networks.beats(0.5),
}


def subject(name: str) -> ddp_finding.Subject:
    def build() -> Any:
        torch.manual_seed(0)
        return networks.Layered(ENCODERS[name]()).train()

    batches = [torch.randn(2, 5 * networks.HOP, generator=torch.Generator().manual_seed(n)) for n in range(STEPS)]
    return ddp_finding.Subject(build, batches, lambda output, batch: output.square().mean())


def main() -> None:
    distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    two_ranks.leave({name: ddp_finding.compared(subject(name)) for name in ENCODERS})


if __name__ == "__main__":
    main()
