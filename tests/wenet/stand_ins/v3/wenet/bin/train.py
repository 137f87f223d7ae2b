"""A training script: takes what it needs by name, as WeNet's does."""

from __future__ import annotations

import argparse

from wenet.utils.config import override_config
from wenet.utils.executor import Executor
from wenet.utils.train_utils import add_lora_args


def main() -> None:
    parser = add_lora_args(argparse.ArgumentParser())
    parser.add_argument("--override_config", action="append", default=[])
    args, _ = parser.parse_known_args()
    Executor()
    override_config({"accum_grad": 1}, args.override_config)


if __name__ == "__main__":
    main()
