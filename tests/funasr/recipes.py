"""Tiny random models and a synthetic corpus, in the form in which FunASR's own training entries take them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Sequence

import numpy as np

FS = 16000
WORDS = list("abcdefghijklmnopqrstuvwxyz")
# Blank, the ends of a sentence and the unknown word stand where FunASR's own token lists have them.
TOKENS = ["<blank>", "<s>", "</s>", *WORDS, "<unk>"]

# What differs from the defaults of the classes.
_STILL = dict.fromkeys(("dropout_rate", "positional_dropout_rate"), 0.0)
_ENCODER: Dict[str, Any] = {**_STILL, "output_size": 16, "attention_heads": 2}
_SANM: Dict[str, Any] = {"linear_units": 32, "num_blocks": 2, "kernel_size": 11}
# Of both kinds of branchformer.
_BRANCHES: Dict[str, Any] = {**_ENCODER, "cgmlp_linear_units": 32, "cgmlp_conv_kernel": 7, "num_blocks": 4}
_ENCODERS: Dict[str, Dict[str, Any]] = {
    "SANMEncoder": {**_ENCODER, **_SANM, "input_layer": "pe", "pos_enc_class": "SinusoidalPositionEncoder"},
    "ConformerEncoder": {
        **_ENCODER,
        "linear_units": 32,
        "num_blocks": 4,
        "macaron_style": True,
        "cnn_module_kernel": 7,
    },
    "BranchformerEncoder": _BRANCHES,
    "EBranchformerEncoder": {
        **_BRANCHES,
        "linear_units": 32,
        "use_ffn": True,
        "macaron_ffn": True,
        "merge_conv_kernel": 7,
    },
    "TransformerEncoder": {**_ENCODER, "linear_units": 32, "num_blocks": 4},
}
_DECODER: Dict[str, Any] = {**_STILL, "attention_heads": 2}
_SANM_DECODER: Dict[str, Any] = {**_DECODER, **_SANM, "att_layer_num": 2}
_TRANSFORMER_DECODER: Dict[str, Any] = {**_DECODER, "linear_units": 32, "num_blocks": 1}
_CIF = {"idim": 16, "threshold": 1.0, "l_order": 1, "r_order": 1, "tail_threshold": 0.45}
_TIMESTAMPS: Dict[str, Any] = {
    **_CIF,
    "smooth_factor2": 0.25,
    "noise_threshold2": 0.01,
    "upsample_times": 3,
    "use_cif1_cnn": False,
    "upsample_type": "cnn_blstm",
}
_PARAFORMER = {
    "ctc_weight": 0.0,
    "lsm_weight": 0.1,
    "length_normalized_loss": True,
    "predictor_weight": 1.0,
    "predictor_bias": 1,
    "sampling_ratio": 0.75,
}
_ATTENTION = {"ctc_weight": 0.3, "lsm_weight": 0.1, "length_normalized_loss": False}
_FRONTEND: Dict[str, Any] = {
    "fs": FS,
    "window": "hamming",
    "n_mels": 80,
    "frame_length": 25,
    "frame_shift": 10,
    "lfr_m": 7,
    "lfr_n": 6,
    "dither": 0.0,
}
_TRAINING: Dict[str, Any] = {
    "accum_grad": 1,
    "grad_clip": 5.0,
    "max_epoch": 1,
    "log_interval": 1,
    "keep_nbest_models": 1,
    "avg_nbest_model": 1,
    "validate_interval": 1000,
    "save_checkpoint_interval": 1000,
}
_HOTWORDS = {"inner_dim": 16, "bias_encoder_type": "lstm", "bias_encoder_bid": False}


def _model(name: str) -> Dict[str, Any]:
    """The part of a configuration that describes the model: class, encoder, decoder, predictor."""
    if name in ("Conformer", "Branchformer"):
        return {
            "model": name,
            "model_conf": dict(_ATTENTION),
            "encoder": name + "Encoder",
            "encoder_conf": dict(_ENCODERS[name + "Encoder"]),
            "decoder": "TransformerDecoder",
            "decoder_conf": dict(_TRANSFORMER_DECODER),
        }
    model: Dict[str, Any] = {
        "model": name,
        "model_conf": dict(_PARAFORMER),
        "encoder": "SANMEncoder",
        "encoder_conf": dict(_ENCODERS["SANMEncoder"]),
        "decoder": "ParaformerSANMDecoder",
        "decoder_conf": dict(_SANM_DECODER),
        "predictor": "CifPredictorV2",
        "predictor_conf": dict(_CIF),
    }
    if name == "SeacoParaformer":
        model.update(predictor="CifPredictorV3", predictor_conf=dict(_TIMESTAMPS))
        model["model_conf"].update(_HOTWORDS, NO_BIAS=len(TOKENS) - 1)
        model["seaco_decoder"] = "ParaformerSANMDecoder"
        model["seaco_decoder_conf"] = {**_SANM_DECODER, "wo_input_layer": True, "use_output_layer": False}
    return model


def config(name: str, folder: Path) -> Dict[str, Any]:
    """The whole configuration of a training run of model class ``name`` on the corpus in ``folder``."""
    hotwords = name == "SeacoParaformer"
    return {
        **_model(name),
        "input_size": 560,
        "frontend": "WavFrontend",
        "frontend_conf": dict(_FRONTEND),
        "tokenizer": "CharTokenizer",
        "tokenizer_conf": {"token_list": str(folder / "tokens.json"), "unk_symbol": "<unk>", "split_with_space": True},
        "dataset": "AudioDatasetHotword" if hotwords else "AudioDataset",
        "dataset_conf": {
            "index_ds": "IndexDSJsonl",
            "batch_sampler": "BatchSampler",
            "batch_type": "example",
            "batch_size": 2,
            "max_token_length": 2048,
            "buffer_size": 500,
            "shuffle": True,
            "num_workers": 0,
            **({"seaco_id": len(TOKENS) - 1} if hotwords else {}),
        },
        "train_data_set_list": str(folder / "train.jsonl"),
        "valid_data_set_list": str(folder / "val.jsonl"),
        "train_conf": dict(_TRAINING),
        "optim": "adam",
        "optim_conf": {"lr": 0.0001},
        "scheduler": "warmuplr",
        "scheduler_conf": {"warmup_steps": 1},
        "output_dir": str(folder / "exp"),
        "device": "cpu",
        "backend": "gloo",
        "hub": "ms",
        "seed": 0,
        "ncpu": 1,
    }


def corpus(folder: Path, seconds: Sequence[float], name: str = "train") -> None:
    """Write ``name``.jsonl and one file of noise an utterance, with lengths as FunASR's ``scp2jsonl`` writes them."""
    import soundfile

    random = np.random.default_rng(len(seconds))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokens.json").write_text(json.dumps(TOKENS))
    lines = []
    for number, length in enumerate(seconds):
        file = folder / f"{name}{number}.wav"
        soundfile.write(file, random.normal(0, 0.1, int(length * FS)).astype("float32"), FS, subtype="PCM_16")
        # Few words for the length: CIF must be able to fire once for each of them.
        words = [WORDS[int(i)] for i in random.integers(0, len(WORDS), max(2, int(length * 2)))]
        line: Dict[str, Any] = {"key": f"{name}{number}", "source": str(file), "target": " ".join(words)}
        # In frames of 10 ms.
        lines.append({**line, "prompt": "<ASR>", "source_len": int(length * 100), "target_len": len(words)})
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def write(folder: Path, name: str, seconds: Sequence[float] = (1.0, 1.2, 1.4, 1.6) * 4, **changes: Any) -> Path:
    """A corpus and a configuration in ``folder``; ``changes`` are merged into it. Returns the configuration's path."""
    import yaml

    corpus(folder, seconds)
    corpus(folder, seconds[:4], "val")
    whole = _merged(config(name, folder), changes)
    (folder / "config.yaml").write_text(yaml.safe_dump(whole))
    return folder / "config.yaml"


def _merged(whole: Dict[str, Any], changes: Dict[str, Any]) -> Dict[str, Any]:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(whole.get(key), dict):
            whole[key] = _merged(dict(whole[key]), value)
        else:
            whole[key] = value
    return whole
