"""Mixed precision, loss scaling, cached memory and resuming: FunASR's real trainers around a model of one parameter."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Iterator, List

import pytest
import torch

import ddpfix.log
from tests.funasr import tiny_training, trained
from tests.funasr.trained import active as patched

RELEASE = trained.release()
ENTRIES = tiny_training.entries()
OLD_SCALER = (1, 0, 11)


def scaler(scale: float) -> Any:
    if not hasattr(torch.amp, "GradScaler"):
        pytest.skip("torch has a loss scaler for the CPU from 2.3 on")
    return torch.amp.GradScaler("cpu", init_scale=scale)


@pytest.fixture()
def cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What FunASR's modules look up for CUDA's autocast, for the CPU."""

    def autocast(enabled: bool = True, dtype: Any = None, cache_enabled: bool = True) -> Any:
        return torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=enabled)

    for entry in ENTRIES:
        monkeypatch.setattr(tiny_training.module(entry), "autocast", autocast, raising=False)


def fp16(entry: str, folder: Path, scale: float, slope: float) -> tiny_training.Run:
    return tiny_training.Run(entry, folder, scaler=scaler(scale), slope=slope, use_fp16=True, grad_clip=5.0)


@pytest.mark.patches("funasr.precision")
@pytest.mark.skipif(RELEASE < OLD_SCALER, reason="there is no loss scaling before 1.0.11")
@pytest.mark.parametrize("entry", ENTRIES)
def test_clipping_before_unscaling(entry: str, tmp_path: Path) -> None:
    # The gradient is 100, the limit 5, and SGD's learning rate 1: a step is 5, unless scaled gradients are clipped.
    unpatched = fp16(entry, tmp_path, 65536.0, 100.0).train()
    assert unpatched[0] == pytest.approx(-5 / 65536, rel=1e-3)
    with patched("funasr.precision"):
        steps = fp16(entry, tmp_path, 65536.0, 100.0).train()
    assert steps == pytest.approx([-5.0 * n for n in range(1, 7)], rel=1e-5)


@pytest.mark.patches("funasr.precision")
@pytest.mark.skipif(RELEASE < OLD_SCALER, reason="there is no loss scaling before 1.0.11")
@pytest.mark.parametrize("entry", ENTRIES)
def test_the_scale_backs_off(entry: str, tmp_path: Path) -> None:
    # A gradient of 16 overflows at scales from 2**124 on.
    unpatched = fp16(entry, tmp_path, 2.0**127, 16.0)
    assert unpatched.train() == [] and unpatched.scaler.get_scale() == 2.0**127
    with patched("funasr.precision"):
        run = fp16(entry, tmp_path, 2.0**127, 16.0)
        steps = run.train()
    assert run.scaler.get_scale() == 2.0**123
    assert steps == pytest.approx([-5.0, -10.0], rel=1e-5)


@pytest.mark.patches("funasr.precision")
@pytest.mark.skipif(RELEASE < OLD_SCALER, reason="there is no loss scaling before 1.0.11")
@pytest.mark.parametrize("entry", ENTRIES)
def test_clipping_is_torchs_own_outside_of_an_epoch(entry: str, tmp_path: Path) -> None:
    before = torch.nn.utils.clip_grad_norm_
    during: List[Any] = []

    def fails(x: torch.Tensor) -> None:
        during.append(torch.nn.utils.clip_grad_norm_)
        raise ZeroDivisionError

    with patched("funasr.precision"):
        run = fp16(entry, tmp_path, 65536.0, 1.0)
        run.model.forward = fails  # type: ignore[method-assign]
        with pytest.raises(ZeroDivisionError):
            run.train()
        assert torch.nn.utils.clip_grad_norm_ is before is not during[0]


@pytest.mark.patches("funasr.precision")
@pytest.mark.parametrize("entry", ENTRIES)
def test_full_precision_is_left_alone(entry: str, tmp_path: Path) -> None:
    unpatched = tiny_training.Run(entry, tmp_path, slope=100.0, grad_clip=5.0).train()
    with patched("funasr.precision"):
        run = tiny_training.Run(entry, tmp_path, slope=100.0, grad_clip=5.0)
        assert run.train() == unpatched
        run.validate()
    assert set(run.model.seen) == {torch.float32}
    assert "forward" not in vars(run.model)


@pytest.mark.patches("funasr.precision")
@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry != "train_ds"])
def test_train_runs_in_bfloat16(entry: str, tmp_path: Path, cpu: None) -> None:
    run = tiny_training.Run(entry, tmp_path, use_bf16=True)
    run.train()
    assert set(run.model.seen) == {torch.bfloat16 if RELEASE >= (1, 3, 4) else torch.float32}
    with patched("funasr.precision"):
        run = tiny_training.Run(entry, tmp_path, use_bf16=True)
        steps = run.train()
    assert set(run.model.seen) == {torch.bfloat16} and steps == [-1.0 * n for n in range(1, 7)]


@pytest.mark.patches("funasr.precision")
@pytest.mark.skipif("train_ds" not in ENTRIES, reason="there is no trainer_ds before 1.0.28")
@pytest.mark.parametrize("flag, dtype", [("use_fp16", torch.float16), ("use_bf16", torch.bfloat16)])
def test_train_ds_runs_in_half_precision(tmp_path: Path, cpu: None, flag: str, dtype: torch.dtype) -> None:
    def run() -> tiny_training.Run:
        made = tiny_training.Run("train_ds", tmp_path, scaler=scaler(1024.0), **{flag: True})
        made.train()
        return made

    right = RELEASE >= (1, 2, 7)
    assert set(run().model.seen) == {dtype if right else torch.float32}
    with patched("funasr.precision"):
        assert set(run().model.seen) == {dtype}


@pytest.mark.patches("funasr.precision")
@pytest.mark.skipif("train_ds" not in ENTRIES, reason="there is no trainer_ds before 1.0.28")
def test_no_loss_scaling_for_bfloat16(tmp_path: Path) -> None:
    def run() -> tiny_training.Run:
        # The entry makes a scaler for bfloat16 before 1.2.7, and none after that.
        given = scaler(65536.0) if RELEASE < (1, 2, 7) else None
        return tiny_training.Run("train_ds", tmp_path, scaler=given, use_bf16=True, slope=100.0, grad_clip=5.0)

    first = run().train()[0]
    assert first == pytest.approx(-5 / 65536 if RELEASE < (1, 2, 7) else -5.0, rel=1e-3)
    with patched("funasr.precision"):
        made = run()
        assert made.train() == pytest.approx([-5.0 * n for n in range(1, 7)], rel=1e-5)
    if made.scaler is not None:
        # It is written into checkpoints, and must be one that can be loaded again.
        assert made.scaler.is_enabled() and made.scaler.state_dict()["scale"] == 65536.0


class Gpu:
    """Records what is released on which device; the parameters say that they are on a GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, reserved: int = 0) -> None:
        self.released: List[str] = []
        self.current: List[str] = []
        self.parameter = SimpleNamespace(device=SimpleNamespace(type="cuda"))

        @contextlib.contextmanager
        def chosen(device: Any) -> Iterator[None]:
            self.current.append(device.type)
            yield
            self.current.pop()

        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: self.released.append(self.current[-1]))
        monkeypatch.setattr(torch.cuda, "device", chosen)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device=None: reserved)
        properties = SimpleNamespace(total_memory=80 * 2**30)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)

    def train(self, run: tiny_training.Run, monkeypatch: pytest.MonkeyPatch) -> int:
        """An epoch; returns how often memory was released. The first parameter that is requested is on the GPU."""
        original = run.model.parameters
        answers = [iter([self.parameter])]
        monkeypatch.setattr(
            run.model, "parameters", lambda *a: answers.pop() if answers else original(*a), raising=False
        )
        del self.released[:]
        run.train()
        return len(self.released)


@pytest.fixture()
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(monkeypatch)


# From 1.0.6 to 1.0.17 the trainer itself releases after every forward (from 1.0.11 on unless switched off).
RELEASES_ITSELF = (1, 0, 6) <= RELEASE < (1, 0, 11)
QUIET: Dict[str, Any] = {"disable_gpu_cache": False} if (1, 0, 11) <= RELEASE < (1, 0, 18) else {}


@pytest.mark.patches("funasr.cache")
@pytest.mark.skipif(RELEASES_ITSELF, reason="the release releases after every forward")
@pytest.mark.parametrize("entry", ENTRIES)
def test_memory_is_released_every_so_many_steps(
    entry: str, tmp_path: Path, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    with patched("funasr.cache", cache="4"):
        run = tiny_training.Run(entry, tmp_path, **QUIET)
        # Six steps an epoch: the fourth, then the eighth and the twelfth.
        assert [gpu.train(run, monkeypatch) for _ in range(2)] == [1, 2]
        assert set(gpu.released) == {"cuda"}
    with patched("funasr.cache"):
        assert gpu.train(tiny_training.Run(entry, tmp_path, **QUIET), monkeypatch) == 0


@pytest.mark.patches("funasr.cache")
@pytest.mark.parametrize("entry", ENTRIES)
def test_without_a_gpu_nothing_is_released(entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: List[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append(1))
    tiny_training.Run(entry, tmp_path, **QUIET).train()
    unpatched = len(calls)
    with patched("funasr.cache", cache="1"):
        tiny_training.Run(entry, tmp_path, **QUIET).train()
    assert len(calls) == 2 * unpatched and (unpatched == 0 or RELEASES_ITSELF)


@pytest.mark.patches("funasr.cache")
@pytest.mark.skipif(RELEASE < (1, 0, 26), reason="there is no reset_gpu_cache before 1.0.26")
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("reserved, times", [(69, 1), (71, 7)])
def test_reset_gpu_cache(
    entry: str, reserved: int, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = entry == "train" and RELEASE < (1, 0, 29)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: reserved * 2**30)
    unpatched = tiny_training.Run(entry, tmp_path, reset_gpu_cache=True)
    calls: List[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append(1))
    unpatched.train()
    assert len(calls) == (6 if works and reserved > 70 else 0)
    gpu = Gpu(monkeypatch, reserved * 2**30)
    gpu.current.append("the release's own")
    with patched("funasr.cache"):
        expected = len(calls) if works else times
        assert gpu.train(tiny_training.Run(entry, tmp_path, reset_gpu_cache=True), monkeypatch) == expected


@pytest.mark.patches("funasr.cache", "funasr.precision")
def test_what_does_nothing_in_this_release_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: List[str] = []
    for name in ("info", "warning"):
        monkeypatch.setattr(ddpfix.log, name, lines.append)
    with patched("funasr.cache", "funasr.precision"):
        tiny_training.Run("train", tmp_path, disable_gpu_cache=True, use_fp16=True)
    used = (1, 0, 11) <= RELEASE < (1, 0, 18)
    assert any("this release of FunASR ignores train_conf.disable_gpu_cache" in line for line in lines) == (not used)
    assert any("use_fp16 has no effect before FunASR 1.0.11" in line for line in lines) == (RELEASE < OLD_SCALER)


@pytest.mark.patches("funasr.resume")
@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry != "train_ds"])
def test_a_checkpoint_is_loaded_by_way_of_the_cpu(entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = tiny_training.Run(entry, tmp_path)
    torch.nn.init.ones_(saved.model.layer.weight)
    state = {"epoch": 3, "state_dict": saved.model.state_dict(), "optimizer": saved.optim.state_dict()}
    state.update(scheduler=saved.scheduler.state_dict(), acc=[0.5], step_or_epoch=0, saved_ckpts={}, train_acc_avg=0.5)
    state["train_loss_avg"] = 0.5
    torch.save(state, tmp_path / "model.pt")
    requested: List[Any] = []
    original = torch.load

    def load(*args: Any, **kwargs: Any) -> Any:
        requested.append(kwargs.get("map_location"))
        return original(*args, **kwargs)

    monkeypatch.setattr(torch, "load", load)

    def resumed() -> tiny_training.Run:
        run = tiny_training.Run(entry, tmp_path, resume=True)
        if run.holds:
            run.trainer._resume_checkpoint(str(tmp_path))
        else:
            run.trainer.resume_checkpoint(model=run.model, optim=run.optim, scheduler=run.scheduler, scaler=None)
        return run

    assert resumed().weight == 1.0
    with patched("funasr.resume"):
        assert resumed().weight == 1.0
    assert requested == ["cpu" if RELEASE >= (1, 0, 20) else None, "cpu"]
    assert tiny_training.module(entry).torch is torch
