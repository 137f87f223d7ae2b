"""The digest of the replicas: the same number however a tensor lies in memory, and without a copy of it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Callable, Dict

import pytest
import torch
from ddpfix.patches.torch.replicas import fingerprint

from tests.support import ranks

pytestmark = pytest.mark.patches("torch.divergence")
TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64)
# The same elements in another place, order or shape in memory.
LAYOUTS: Dict[str, Callable[[Any], Any]] = {
    "as it is": lambda data: data,
    "transposed": lambda data: data.t().contiguous().t(),
    "channels last": lambda data: data.reshape(2, 5, 20, 15).contiguous(memory_format=torch.channels_last),
    "part of a larger one": lambda data: torch.stack([data, data], dim=-1)[..., 0],
    "at an odd place": lambda data: torch.cat([data.reshape(-1)[:1], data.reshape(-1)])[1:].view(100, 30),
    "with long rows": lambda data: torch.stack([data.view(2, 1500)] * 2, dim=-1)[..., 1],
}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("piece", [1 << 22, 1000, 7])
def test_ranks_get_the_same_number(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, layout: str, piece: int
) -> None:
    data = torch.randn(100, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[data.element_size()]
    expected = data.contiguous().view(bits).sum(dtype=torch.int64).item()
    monkeypatch.setattr(fingerprint, "_PIECE", piece)
    assert fingerprint._sum(LAYOUTS[layout](data)).item() == expected


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2)])
def test_small_ones(shape: Any) -> None:
    assert fingerprint._sum(torch.ones(shape)).shape == (1,)


def test_samples_are_no_float64_unless_the_parameters_are() -> None:
    """MPS, Gaudi and other accelerators have none."""
    assert fingerprint._some(torch.ones(9, dtype=torch.bfloat16)).dtype is torch.float32
    assert fingerprint._some(torch.ones(9)).dtype is torch.float32
    assert fingerprint._some(torch.ones(9, dtype=torch.float64)).dtype is torch.float64


class Own(torch.nn.Parameter):
    """A class of the program's own."""


@pytest.mark.parametrize(
    ("parameter", "is_compared"),
    [
        (torch.nn.Parameter(torch.ones(2)), True),
        (Own(torch.ones(2)), False),
        (torch.nn.Parameter(torch.ones(2, device="meta")), False),
    ],
)
def test_which_parameters_are_compared(parameter: Any, is_compared: bool) -> None:
    assert not fingerprint.comparable(parameter), "it has no gradient"
    parameter.grad = torch.zeros_like(parameter.data)
    assert fingerprint.comparable(parameter) is is_compared


@pytest.mark.parametrize("moved", [False, True])
def test_a_parameter_that_was_moved_since_is_not_compared(moved: bool) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.zeros(2)
    pending = fingerprint.PendingSnapshot(3, 3, {"a": parameter}, torch.optim.SGD([parameter], lr=0.1))
    parameter.data += moved
    assert (pending.finish() is None) is moved


GROWS = """
import resource, sys, torch
from ddpfix.patches.torch.replicas import fingerprint
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
torch.set_num_threads(1)
fingerprint._sum(torch.zeros(1000)); data = torch.zeros(100_000_000, dtype=getattr(torch, sys.argv[1]))
data.fill_(1); before = peak(); fingerprint._sum(data); print(peak() - before)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the peak is read as POSIX has it")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_look_at_a_large_parameter_needs_no_copy_of_it(dtype: str) -> None:
    """200 and 400 MB: what torch copies to sum it as int64 was 800 MB."""
    command = [sys.executable, "-c", GROWS, dtype]
    ran = subprocess.run(command, env=ranks.environment(), capture_output=True, text=True, timeout=120, check=True)
    assert float(ran.stdout) < 64
