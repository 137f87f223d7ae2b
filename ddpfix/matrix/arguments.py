"""The keywords of ``ddpfix.activate`` for type checkers: written by python -m tests.support.arguments."""

from __future__ import annotations

import os
from typing import Literal, TypedDict, Union

# 0 leaves a patch out, 1 asks for one that is off by default, force applies it to a release that was not tested.
Switch = Union[bool, Literal["0", "1", "force", 0, 1]]


class Arguments(TypedDict, total=False):
    """The settings, and by the ids of the patches (dots are underscores) their switches."""

    unused: Literal["auto", "find", "late", "static", "off"]
    layerdrop: Literal["sync", "off", "stock"]
    overrides: Literal["apply", "off"]
    untested: Literal["unchanged", "off"]
    uneven: Literal["auto", "pad", "join", "stop", "off"]
    memory: Literal["on", "off"]
    cache: Union[int, float, str]
    seed: Union[int, float, str]
    timeout: Union[int, float, str]
    divergence: Union[int, float, str]
    bypass: Literal["auto", "route", "off"]
    trace: Union[str, os.PathLike[str]]
    hang: Union[int, float, str]
    hang_exit: Union[int, float, str]
    log: Literal["debug", "info", "warning", "error", "off"]
    torch_flag: Switch
    torch_diagnosis: Switch
    torch_agreement: Switch
    torch_finalize: Switch
    torch_reentrant: Switch
    torch_layerdrop: Switch
    torch_accumulation: Switch
    torch_buffers: Switch
    torch_init_file: Switch
    torch_divergence: Switch
    torch_bypass: Switch
    torch_probe: Switch
    torch_uneven: Switch
    torch_failures: Switch
    torch_trace: Switch
    torch_hang: Switch
    torch_fsdp: Switch
    deepspeed_layerdrop: Switch
    transformers_layerdrop: Switch
    transformers_sharded: Switch
    transformers_recording: Switch
    transformers_intent: Switch
    transformers_timeout: Switch
    transformers_checkpointing: Switch
    transformers_overrides: Switch
    accelerate_intent: Switch
    accelerate_timeout: Switch
    funasr_entry: Switch
    funasr_cpu: Switch
    funasr_flag: Switch
    funasr_model_conf: Switch
    funasr_parallel: Switch
    funasr_overrides: Switch
    funasr_layerdrop: Switch
    funasr_unused: Switch
    funasr_samplers: Switch
    funasr_memory: Switch
    funasr_lengths: Switch
    funasr_limits: Switch
    funasr_uneven: Switch
    funasr_accumulation: Switch
    funasr_validation: Switch
    funasr_bf16: Switch
    funasr_autocast: Switch
    funasr_bf16_scaler: Switch
    funasr_scaler: Switch
    funasr_validation_precision: Switch
    funasr_cache: Switch
    funasr_resume: Switch
    funasr_checkpoint: Switch
    speechbrain_unused: Switch
    speechbrain_layerdrop: Switch
    speechbrain_spec_augment: Switch
    speechbrain_frozen: Switch
    speechbrain_unwrapped: Switch
    speechbrain_options: Switch
    speechbrain_yaml_options: Switch
    speechbrain_device: Switch
    speechbrain_precision: Switch
    speechbrain_probe: Switch
    speechbrain_accumulation: Switch
    speechbrain_clipping: Switch
    speechbrain_clip_groups: Switch
    speechbrain_no_sync: Switch
    speechbrain_finite: Switch
    speechbrain_bypass: Switch
    speechbrain_stages: Switch
    speechbrain_checkpoints: Switch
    speechbrain_main_saves: Switch
    speechbrain_loggers: Switch
    speechbrain_uneven: Switch
    speechbrain_single_batch: Switch
    speechbrain_no_hparams: Switch
    fastnlp_unused: Switch
    fastnlp_overrides: Switch
    fastnlp_hint: Switch
    fastnlp_layerdrop: Switch
    fastnlp_cause: Switch
    fastnlp_logs: Switch
    wenet_uneven: Switch
    wenet_validation: Switch
    wenet_barrier: Switch
    wenet_unused: Switch
    wenet_checkpointing: Switch
    wenet_layerdrop: Switch
    wenet_overrides: Switch
    wenet_flags: Switch
    wenet_typing_names: Switch
    wenet_sox_buffer: Switch
    wenet_torchaudio: Switch
    torchaudio_layerdrop: Switch
    espnet_layerdrop: Switch
    espnet_unused: Switch
    s3prl_layerdrop: Switch
    nemo_depth: Switch
