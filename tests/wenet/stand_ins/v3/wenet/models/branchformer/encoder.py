"""A list of layers that leaves some out when it is iterated over, with the name and the rates of that in WeNet 3.1."""

from __future__ import annotations

from typing import Any, Iterator, List

import torch


class LayerDropModuleList(torch.nn.ModuleList):
    def __init__(self, p: List[float], modules: Any = None) -> None:
        super().__init__(modules)
        self.p = p

    def __iter__(self) -> Iterator[torch.nn.Module]:
        numbers = torch.empty(len(self)).uniform_()
        for index, layer in enumerate(super().__iter__()):
            if not self.training or numbers[index] > self.p[index]:
                yield layer
