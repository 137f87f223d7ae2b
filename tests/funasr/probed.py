"""FunASR's models as DDP sees them on two ranks, and the probe in one process; a script for torch elastic."""

from __future__ import annotations

import torch
from torch import distributed

from tests.funasr import tiny_model
from tests.support import ddp_finding, two_ranks

# Configurations of SeacoParaformer, by name.
CASES = {
    "default": {},
    "train_decoder": {"train_decoder": True},
    "no_sampler": {"train_decoder": False, "sampling_ratio": 0.0},
    "ctc": {"ctc_weight": 0.3},
}


def subject(name: str) -> ddp_finding.Subject:
    return ddp_finding.Subject(
        lambda: tiny_model.build("SeacoParaformer", model_conf=CASES[name]).train(),
        [tiny_model.batch(seed) for seed in range(4)],
        lambda output, batch: output[0],
    )


def main() -> None:
    distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    two_ranks.leave({name: ddp_finding.compared(subject(name)) for name in CASES})


if __name__ == "__main__":
    main()
