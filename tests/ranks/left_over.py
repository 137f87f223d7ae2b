"""A rank that trains under one activation and then under another: what each leaves at the level of modules."""

from __future__ import annotations

import copy
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Dict, List, Sized

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
from transformers import Wav2Vec2Config, Wav2Vec2Model

import ddpfix
from ddpfix import engine
from tests.unit.test_registries import OF_ACTIVATION


class Net(nn.Module):
    """An encoder that draws for its layers, whole in a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 16}
        config = Wav2Vec2Config(
            **sizes, conv_dim=[8], conv_stride=[4], conv_kernel=[4], num_conv_pos_embedding_groups=2, layerdrop=0.5
        )
        self.encoder = Wav2Vec2Model(config).encoder
        self.last, self.unused = nn.Linear(16, 1), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> Any:
        # What comes into the encoder is recomputed too: the call that is repeated is known by its random state.
        return self.last(checkpoint(lambda hidden: self.encoder(hidden * 2)[0], x, use_reentrant=False))


def trained(net: Net, weights: Dict[str, Any]) -> List[float]:
    """The losses of some steps under an activation of its own, from these weights."""
    ddpfix.activate(log="off", uneven="stop", seed=5)
    net.load_state_dict(weights)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    data: Any = list(torch.arange(6 * 8 * 16.0).sin().view(6, 8, 16))
    for batch in DataLoader(data, 2):
        torch.manual_seed(7)
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    # One more, whose backward never comes.
    torch.manual_seed(7)
    model(torch.ones(2, 8, 16))
    torch.get_rng_state()
    assert ddpfix.deactivate() == []
    return losses


def sizes() -> Dict[str, str]:
    """What is left, by name, of what belongs to an activation."""
    left = {}
    for name in OF_ACTIVATION:
        module, _, attribute = name.rpartition(".")
        found = getattr(sys.modules[module], attribute) if module in sys.modules else None
        for part, held in {"": found}.items() if hasattr(found, "__len__") else getattr(found, "__dict__", {}).items():
            # The written order of subscribers is the same in every activation.
            if part != "_order" and isinstance(held, Sized) and not isinstance(held, str) and len(held):
                left[f"{name} {part}".rstrip()] = repr(held)
    return left


def main() -> None:
    distributed.init_process_group("gloo")
    for name in OF_ACTIVATION:
        if "patches." not in name:
            import_module(name.rpartition(".")[0])
    before = sizes()
    net = Net()
    weights = copy.deepcopy(net.state_dict())
    first = trained(net, weights)
    left = [sizes()]
    second = trained(net, weights)
    left.append(sizes())
    assert engine.current() is None
    found = {"before": before, "left": left, "first": first, "second": second}
    (Path(sys.argv[1]) / f"found.{distributed.get_rank()}.json").write_text(json.dumps(found))
    distributed.barrier()


if __name__ == "__main__":
    main()
