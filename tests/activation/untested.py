"""A rank of a job that leaves a parameter out in each step: the program of ``test_untested``."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.launchers.spawned import Skipping


def main(mode: str) -> None:
    if mode == "changed":
        # As if this release had rewritten it.
        original: Any = DistributedDataParallel._match_all_reduce_for_bwd_pass

        def _match_all_reduce_for_bwd_pass(self: Any) -> None:
            original(self)

        DistributedDataParallel._match_all_reduce_for_bwd_pass = _match_all_reduce_for_bwd_pass  # type: ignore[method-assign]
    if mode == "compiled":
        # As if the reducer no longer said what it waits for: torch is here already, so the activation asks.
        from ddpfix.patches.torch.internals import reducer

        reducer.missing = lambda made: ([], False)
    import ddpfix.auto  # noqa: F401

    if mode == "lightning":
        from tests.skipping.shapes import Item
        from tests.support import small_lightning

        torch.manual_seed(0)
        small_lightning.fit(nn.Sequential(nn.Linear(4, 4), Item()), (12, 4), find_unused_parameters=False)
        return
    if mode == "transformers":
        import transformers  # noqa: F401
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Skipping())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        model(torch.full((2, 2), float(distributed.get_rank() + step))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    if distributed.get_rank() == 0:
        print("trained", model.module.used.weight.tolist(), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
