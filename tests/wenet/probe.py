"""A training script of a user's own: says whether ``override_config`` is ours, here and in data loader workers."""

from __future__ import annotations

import sys
from typing import Any

import torch
from wenet.utils.config import override_config


def ours() -> bool:
    return bool(override_config({"key": 1}, ["key=2"])["key"] == 2)


class Data(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> bool:
        return ours()


def main() -> None:
    print("main", ours())
    for way in sys.argv[1:]:
        loader = torch.utils.data.DataLoader(Data(), batch_size=None, num_workers=1, multiprocessing_context=way)
        print(way, *loader)


if __name__ == "__main__":
    main()
