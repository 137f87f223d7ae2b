"""A rank that ends while a thread of gloo lets go of its last work: the memory that it reduced takes its time."""

import hashlib
import threading
import time

import numpy as np
import torch
from torch import distributed

# Rounds of a hash, which runs without the GIL: some tenths of a second.
ROUNDS = 600_000
letting_go = threading.Event()


class Lent(np.ndarray):
    """Memory that is slow to go."""

    def __del__(self) -> None:
        letting_go.set()
        hashlib.pbkdf2_hmac("sha256", b"", b"", ROUNDS)


def lent() -> torch.Tensor:
    return torch.from_numpy(np.ones(8, dtype=np.float32).view(Lent))


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    # Nobody but the group's thread has this work and its tensor.
    distributed.all_reduce(lent(), async_op=True)
    while not letting_go.is_set():
        time.sleep(0.001)
    print("done", flush=True)
