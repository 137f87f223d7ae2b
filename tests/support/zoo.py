"""TinyModel random models for every transformers class that skips whole layers at random.

Each :class:`TinyModel` is data: a public model class, a configuration and the shapes of a batch.
``drawing_classes`` finds, by reading the installed release, every class that such an entry has to
cover, so a family that a new release adds makes the zoo's own test fail instead of going untested.
"""

from __future__ import annotations

import ast
import copy
import importlib
import importlib.util
import operator
import random
import re
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable, Dict, FrozenSet, Iterable, Iterator, List, Mapping, Optional, Set, Tuple
from unittest import mock

import numpy as np
import torch
import transformers
from packaging.version import Version
from torch import Tensor, nn

RATE_NAMES = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop", "speech_encoder_layerdrop")

# Below the rate used in tests (0.5) a draw skips a layer, above it keeps one, in every family:
# adapters phrase the test the other way round but agree on which side means "skip".
SKIP, KEEP = 0.1, 0.9


@dataclass(frozen=True)
class Array:
    """One input tensor: how to fill it and its shape."""

    kind: str
    shape: Tuple[int, ...]
    value: int = 0

    def make(self, generator: torch.Generator) -> Tensor:
        if self.kind == "floats":
            return torch.randn(self.shape, generator=generator)
        if self.kind == "ids":
            # The first few ids are padding, start and end tokens everywhere.
            return torch.randint(4, 20, self.shape, generator=generator)
        return torch.full(self.shape, self.value)


def floats(*shape: int) -> Array:
    return Array("floats", shape)


def ids(*shape: int) -> Array:
    return Array("ids", shape)


def same(value: int, *shape: int) -> Array:
    return Array("same", shape, value)


@dataclass(frozen=True, eq=False)
class TinyModel:
    """One tiny random model.

    ``model`` and ``config`` are names exported by transformers, or ``dotted.module:Name`` where the
    class is not exported. ``draws`` names the classes inside it whose forward draws; a class that
    draws only in some releases is listed too, see ``drawing``. ``older`` maps a release to options
    that only releases before it need. From ``dies_from`` to before ``lives_from``, unpatched models die
    in some patterns of skips; from ``broken_from`` on, and before ``works_from``, it cannot even be built
    or run as configured here.
    """

    name: str
    model: str
    config: str
    options: Mapping[str, Any]
    inputs: Mapping[str, Array]
    draws: Tuple[str, ...]
    older: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    dies_from: Optional[str] = None
    lives_from: Optional[str] = None
    broken_from: Optional[str] = None
    works_from: Optional[str] = None

    def available(self) -> bool:
        """Whether the installed release has the class, can run it and still draws in it."""
        return self.runs() and _find(self.model) is not None and bool(self.drawing())

    def runs(self) -> bool:
        """Whether the class can be built and run at all, unpatched."""
        old_enough = self.broken_from is None or _before(self.broken_from)
        return old_enough and (self.works_from is None or not _before(self.works_from))

    def survives(self) -> bool:
        """Whether the original forward runs whatever layers are skipped."""
        if self.dies_from is None or _before(self.dies_from):
            return True
        return self.lives_from is not None and not _before(self.lives_from)

    def drawing(self) -> Tuple[str, ...]:
        """Those of ``draws`` which do draw in the installed release."""
        present = _classes_of_module(self.module())
        return tuple(name for name in self.draws if name in present)

    def module(self) -> str:
        """The dotted name of the modeling module, the one ``scripted_draws`` wants."""
        found = _find(self.model)
        return found.__module__ if found is not None else ""

    def build(self, rate: float = 0.5, seed: int = 0) -> nn.Module:
        """The model in training mode; nothing but the layer skips is random in its forward."""
        config = self.make_config(rate)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = _need(self.model)(config)
        set_rate(model, rate)
        return model.train()

    def make_config(self, rate: float = 0.5) -> Any:
        # Some configurations empty the nested dicts that they are given.
        options = copy.deepcopy(dict(self.options))
        for release, changes in self.older.items():
            if _before(release):
                options.update(changes)
        config = _need(self.config)(**options)
        _silence(config)
        _set_names(config, rate)
        return config

    def batch(self, seed: int = 0) -> Dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {name: array.make(generator) for name, array in self.inputs.items()}

    def loss(self, output: Any) -> Tensor:
        """A scalar that reaches the output of every stack."""
        return _weigh(list(_tensors(output)))

    def last_loss(self, output: Any) -> Tensor:
        """A scalar that reaches the output of the last stack only, as a training loss does.

        When every decoder layer is skipped, it does not reach the encoder.
        """
        # It comes first everywhere but in segmentation models.
        name = "transformer_decoder_last_hidden_state"
        last = output[name] if isinstance(output, dict) and name in output else output
        return _weigh(list(_tensors(last))[:1])


def tiny_model(name: str) -> TinyModel:
    return next(entry for entry in ZOO if entry.name == name)


def set_rate(model: nn.Module, rate: float) -> None:
    """Give every drawing module of the model this rate, wherever it reads it from."""
    for module in model.modules():
        if "layerdrop" in module.__dict__:
            module.__dict__["layerdrop"] = rate
        if getattr(module, "config", None) is not None:
            _set_names(module.config, rate)


def _set_names(config: Any, rate: float) -> None:
    for name in RATE_NAMES:
        if hasattr(config, name):
            setattr(config, name, rate)


def _silence(config: Any) -> None:
    """Set every dropout and masking probability of a configuration and its parts to 0."""
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            _silence(value)
        elif isinstance(value, (int, float)) and _is_noise(name):
            setattr(config, name, type(value)(0))


def _is_noise(name: str) -> bool:
    if name in RATE_NAMES:
        return False
    return any(part in name for part in ("dropout", "drop_path", "_mask_prob", "jitter")) or name in (
        "apply_spec_augment",
        "mask_time_prob",
        "mask_feature_prob",
    )


def _before(release: str) -> bool:
    return Version(transformers.__version__) < Version(release)


def _find(path: str) -> Optional[type]:
    """The class behind ``Name`` or ``module:Name``; None where the installed release lacks it."""
    module, _, name = path.rpartition(":")
    try:
        found: type = getattr(importlib.import_module(module or "transformers"), name)
    except (ImportError, AttributeError):
        return None
    return found


def _need(path: str) -> Callable[..., Any]:
    found = _find(path)
    if found is None:
        raise LookupError(path + " is not in the installed transformers")
    return found


def _tensors(value: Any) -> Iterator[Tensor]:
    """The differentiable tensors of an output, caches left out, in their order."""
    if isinstance(value, Tensor):
        if value.requires_grad and value.is_floating_point():
            yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if not key.startswith("past_key"):
                yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _weigh(tensors: List[Tensor]) -> Tensor:
    """A weighted sum: after a layer norm a plain sum or a sum of squares would be constant."""
    if not tensors:
        raise ValueError("the output holds no differentiable tensor")
    total = tensors[0].new_zeros(())
    for tensor in tensors:
        flat = tensor.float().reshape(-1)
        total = total + (flat * torch.cos(torch.arange(flat.numel(), dtype=flat.dtype))).sum()
    return total


# Finding the classes.

# These use a name like layerdrop, but skip no layer.
NOT_LAYER_SKIPS: Mapping[str, str] = {
    "AlbertAttention": "has a local variable whose name ends in layer_dropout, the result of an ordinary dropout",
    "AlbertSdpaAttention": "the same",
    "BitStage": "hands a rate of drop path, which is by sample, to each of its layers while it is built",
}
LAYERDROP = re.compile(r"layer_?drop", re.IGNORECASE)
# A call that draws one number. Weight initialisation and the usual drop path by sample give a shape.
DRAW = re.compile(r"(?<!\w)(torch\.rand\((\[\]|\(\)|\[?1\]?)(\)|, device)|random\.(random|uniform)\(|uniform\(0, ?1\))")
BUILDING = ("__init__", "_init_weights", "post_init", "reset_parameters", "init_weights")


def drawing_classes() -> Dict[str, List[str]]:
    """Every class of the installed release whose forward draws a layer-level skip, by module."""
    found = {}
    root = _package_root()
    for path in sorted((root / "models").rglob("*.py")):
        if _is_modeling(path):
            names = _classes_of_file(path)
            if names:
                dotted = ".".join(path.relative_to(root.parent).with_suffix("").parts)
                found[dotted] = sorted(names)
    return found


def _package_root() -> Path:
    spec = importlib.util.find_spec("transformers")
    assert spec is not None and spec.submodule_search_locations
    return Path(list(spec.submodule_search_locations)[0])


def _is_modeling(path: Path) -> bool:
    """Modular files are left out: nothing imports them, the modeling files are made from them."""
    return path.name.startswith("modeling_") and not path.name.startswith(("modeling_tf_", "modeling_flax_"))


@lru_cache(maxsize=None)
def _classes_of_module(dotted: str) -> FrozenSet[str]:
    spec = importlib.util.find_spec(dotted) if dotted else None
    return _classes_of_file(Path(spec.origin)) if spec is not None and spec.origin else frozenset()


@lru_cache(maxsize=None)
def _classes_of_file(path: Path) -> FrozenSet[str]:
    return frozenset(drawing_classes_of(path.read_text(encoding="utf-8")) - set(NOT_LAYER_SKIPS))


def drawing_classes_of(source: str) -> Set[str]:
    """The classes of one source text whose forward draws a layer-level skip, exclusions included.

    Signs: any use of a layerdrop rate after construction, or a number that is drawn in a loop.
    """
    if not (LAYERDROP.search(source) or DRAW.search(source)):
        # Parsing is slow.
        return set()
    classes = {node: _methods(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)}
    draws = (
        node for node, own in classes.items() if "forward" in own and any(_draws(each, source) for each in own.values())
    )
    found = {node.name for node in draws}
    # A class that inherits its forward draws too.
    heirs = [node for node, own in classes.items() if "forward" not in own]
    return found | {node.name for node in heirs if found & set(map(_name, node.bases))}


def _methods(node: ast.ClassDef) -> Dict[str, ast.FunctionDef]:
    own = (item for item in node.body if isinstance(item, ast.FunctionDef))
    return {item.name: item for item in own if item.name not in BUILDING}


def _draws(method: ast.AST, source: str) -> bool:
    inside = list(ast.walk(method))
    loops = (node for node in inside if isinstance(node, (ast.For, ast.While, ast.ListComp)))
    rates = any(LAYERDROP.search(_name(node)) for node in inside)
    return rates or any(DRAW.search(ast.get_source_segment(source, node) or "") for node in loops)


def _name(node: ast.AST) -> str:
    return getattr(node, "attr", "") or getattr(node, "id", "")


# Answering the draws from a script.


class _Late:
    """The number of a draw, known when it is compared or read first."""

    def __init__(self, answer: Callable[[], float]) -> None:
        self._answer = answer
        self._number: Optional[float] = None

    def __float__(self) -> float:
        if self._number is None:
            self._number = self._answer()
        return self._number

    def _compares(how: Callable[[Any, Any], bool]) -> Any:  # type: ignore[misc]
        return lambda self, rate: how(float(self), rate)

    __lt__, __gt__, __le__, __ge__ = map(_compares, (operator.lt, operator.gt, operator.le, operator.ge))


class _Shim:
    """Stands in for a module in the globals of a modeling module; unknown names are delegated."""

    def __init__(self, real: Any, **replaced: Any) -> None:
        self.__dict__.update(replaced)
        self.__dict__["_real"] = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_real"], name)


@contextmanager
def scripted_draws(decisions: Iterable[bool], modules: Iterable[str], consume: bool = False) -> Iterator[None]:
    """Answer the layer-level draws of these modeling modules from a list, True meaning skip.

    A draw takes its decision when it is compared first: WavLM draws for its first layer as well, and never asks.
    With ``consume`` the generators advance as they do without ddpfix, so that dropout draws the same masks.
    This is the reference that ddpfix is compared with, so it shares nothing with it.
    """
    coming = iter(decisions)

    def answer() -> float:
        skip = next(coming, None)
        if skip is None:
            raise AssertionError("more layer draws than decisions")
        return SKIP if skip else KEEP

    shims = _make_shims(answer, consume)
    with ExitStack() as replaced:
        for module in map(importlib.import_module, modules):
            for name, value in list(vars(module).items()):
                if id(value) in shims:
                    replaced.enter_context(mock.patch.object(module, name, shims[id(value)]))
        yield


def _make_shims(answer: Callable[[], float], consume: bool) -> Dict[int, Any]:
    """Replacements by the identity of the module they stand for, so aliases are found too."""

    def scripted(real: Callable[..., Any], is_layer_draw: Callable[..., bool]) -> Any:
        def draw(*args: Any, **kwargs: Any) -> Any:
            if kwargs or not is_layer_draw(*args):
                return real(*args, **kwargs)
            if consume:
                real(*args)
            return _Late(answer)

        return draw

    def between_0_and_1(*args: Any) -> bool:
        return args == (0, 1)

    # Bound early: inside the functions above the names must mean the real modules.
    rand = scripted(torch.rand, lambda *args: args == ([],))
    numpy_shim = _Shim(
        np.random,
        uniform=scripted(np.random.uniform, between_0_and_1),
        random=scripted(np.random.random, lambda *args: not args),
    )
    return {
        id(torch): _Shim(torch, rand=rand),
        id(random): _Shim(random, uniform=scripted(random.uniform, between_0_and_1)),
        id(np): _Shim(np, random=numpy_shim),
    }


# The table.


def _with(base: Mapping[str, Any], **more: Any) -> Dict[str, Any]:
    return dict(base, **more)


VOCAB = {"vocab_size": 24}
SIDE = {"layers": 4, "attention_heads": 2, "ffn_dim": 16}
# An encoder and a decoder.
BOTH = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in SIDE.items()}
SEQ2SEQ = {
    **BOTH,
    "vocab_size": 24,
    "d_model": 16,
    "max_position_embeddings": 32,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
STACK = {"vocab_size": 24, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 16}
SPEECH = _with(
    STACK,
    # Torch 2.0 and 2.1 on a CPU write what is in memory where the gradient of a GELU is transposed.
    feat_extract_activation="relu",
    conv_dim=(8, 8),
    conv_kernel=(10, 3),
    conv_stride=(5, 2),
    num_feat_extract_layers=2,
    num_conv_pos_embeddings=4,
    num_conv_pos_embedding_groups=2,
)
ADAPTER = {"add_adapter": True, "num_adapter_layers": 3, "output_hidden_size": 16}
PAIR = {"input_ids": ids(2, 7), "decoder_input_ids": ids(2, 5)}
TEXT = {"input_ids": ids(2, 7)}
WAVE = {"input_values": floats(2, 400)}
CROSS = {"input_ids": ids(2, 5), "encoder_hidden_states": floats(2, 7, 16)}
MEL = {"input_features": floats(2, 24, 8)}


BERT_SPEECH = _with(STACK, feature_projection_input_dim=8, conv_depthwise_kernel_size=3, output_hidden_size=16)
MEL_STACK = _with(STACK, num_mel_bins=8, conv_kernel_size=3, subsampling_conv_channels=4, max_position_embeddings=64)
CODES = _with(STACK, ffn_dim=16, num_codebooks=2, max_position_embeddings=32, pad_token_id=1)
TEXT_OF_CODES = {"input_ids": ids(4, 6)}
SEAMLESS = {
    **BOTH,
    "vocab_size": 24,
    "t2u_vocab_size": 24,
    "char_vocab_size": 24,
    "hidden_size": 16,
    "max_position_embeddings": 64,
    "speech_encoder_layers": 4,
    "speech_encoder_attention_heads": 2,
    "speech_encoder_intermediate_size": 16,
    "feature_projection_input_dim": 8,
    "conv_depthwise_kernel_size": 3,
    "adaptor_kernel_size": 4,
    "adaptor_stride": 4,
    **{f"t2u_{name}": size for name, size in BOTH.items()},
    "t2u_encoder_layers": 3,
    "t2u_max_position_embeddings": 64,
    "t2u_variance_predictor_embed_dim": 16,
    "t2u_variance_predictor_hidden_dim": 8,
    "unit_hifi_gan_vocab_size": 24,
}
SERIES = {
    **BOTH,
    "prediction_length": 4,
    "context_length": 16,
    "lags_sequence": [1, 2],
    "num_time_features": 1,
    "d_model": 16,
}
# The past is the context and the longest lag.
PAST_AND_FUTURE = {
    "past_values": floats(2, 18),
    "past_time_features": floats(2, 18, 1),
    "past_observed_mask": same(1, 2, 18),
    "future_values": floats(2, 4),
    "future_time_features": floats(2, 4, 1),
}
RESNET = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 8, 8, 8],
    "depths": [1, 1, 1, 1],
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}
SWIN = {
    "model_type": "swin",
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": [1, 1, 1, 1],
    "num_heads": [1, 1, 1, 1],
    "window_size": 2,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}
DETECTION = {
    **BOTH,
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
    "backbone_config": RESNET,
    "d_model": 16,
    "num_queries": 4,
}
MASKS = {
    "backbone_config": SWIN,
    "feature_size": 32,
    "mask_feature_size": 32,
    "hidden_dim": 32,
    "encoder_feedforward_dim": 16,
    "encoder_layers": 1,
    "decoder_layers": 5,
    "num_attention_heads": 2,
    "dim_feedforward": 16,
    "num_queries": 4,
}
IMAGE = {"pixel_values": floats(2, 3, 32, 32)}


def _of(
    name: str, model: str, options: Mapping[str, Any], inputs: Mapping[str, Array], *draws: str, **more: Any
) -> TinyModel:
    prefix = re.sub(r"(Model|ForCausalLM)$", "", model)
    named = (prefix,) if prefix.endswith("Encoder") else (prefix + "Encoder", prefix + "Decoder")
    return TinyModel(name, model, prefix + "Config", options, inputs, draws or named, **more)


def _speech(name: str, prefix: str, **options: Any) -> TinyModel:
    draws = [f"{prefix}Encoder{'StableLayerNorm' if 'do_stable_layer_norm' in options else ''}"]
    draws += [f"{prefix}Adapter"] if "add_adapter" in options else []
    return _of(name, prefix + "Model", _with(SPEECH, **options), WAVE, *draws)


def _seq2seq(name: str, prefix: str, *draws: str, **options: Any) -> TinyModel:
    return _of(name, prefix + "Model", _with(SEQ2SEQ, **options), PAIR, *draws)


def _text(name: str, prefix: str, options: Mapping[str, Any], inputs: Mapping[str, Array], draws: str) -> TinyModel:
    """A text model that transformers does not export."""
    model, config = (f"transformers.models.{name}.{kind}_{name}:{prefix}Text" for kind in ("modeling", "configuration"))
    return TinyModel(name, f"{model}Model", f"{config}Config", options, inputs, (prefix + draws,))


def _seamless(name: str, prefix: str, kind: str, model: str, inputs: Mapping[str, Array], *draws: str) -> TinyModel:
    place = f"transformers.models.{name}.modeling_{name}:{prefix}{model}"
    named = tuple(prefix + each for each in draws)
    return TinyModel(f"{name}-{kind}", place, f"{prefix}Config", SEAMLESS, inputs, named)


STABLE = {"do_stable_layer_norm": True}

ZOO: Tuple[TinyModel, ...] = (
    _speech("wav2vec2", "Wav2Vec2"),
    _speech("wav2vec2-stable", "Wav2Vec2", **STABLE),
    _speech("wav2vec2-adapter", "Wav2Vec2", **ADAPTER),
    _speech("wavlm", "WavLM"),
    _speech("wavlm-stable", "WavLM", **STABLE),
    _speech("wavlm-adapter", "WavLM", **ADAPTER),
    _speech("hubert", "Hubert"),
    _speech("hubert-stable", "Hubert", **STABLE),
    _speech("unispeech", "UniSpeech"),
    _speech("unispeech-stable", "UniSpeech", **STABLE),
    _speech("unispeech_sat", "UniSpeechSat"),
    _speech("unispeech_sat-stable", "UniSpeechSat", **STABLE),
    _speech("data2vec_audio", "Data2VecAudio", conv_pos_kernel_size=3),
    _speech("data2vec_audio-adapter", "Data2VecAudio", conv_pos_kernel_size=3, **ADAPTER),
    _speech("sew", "SEW", squeeze_factor=2),
    _speech("wav2vec2_conformer", "Wav2Vec2Conformer", conv_depthwise_kernel_size=3),
    _speech("wav2vec2_conformer-adapter", "Wav2Vec2Conformer", conv_depthwise_kernel_size=3, **ADAPTER),
    _seq2seq("bart", "Bart"),
    _seq2seq("mbart", "MBart"),
    _seq2seq("plbart", "PLBart"),
    _seq2seq("mvp", "Mvp"),
    _seq2seq("m2m_100", "M2M100"),
    _seq2seq("blenderbot", "Blenderbot"),
    _seq2seq("blenderbot_small", "BlenderbotSmall"),
    _seq2seq("marian", "Marian"),
    _seq2seq("pegasus", "Pegasus"),
    _seq2seq("bigbird_pegasus", "BigBirdPegasus", attention_type="original_full"),
    # With a cache, 4.57.6 dies: its decoder asks for a config that it does not have.
    _seq2seq("fsmt", "FSMT", src_vocab_size=24, tgt_vocab_size=24, use_cache=False),
    _seq2seq("led", "LED", attention_window=4, max_encoder_position_embeddings=32, max_decoder_position_embeddings=32),
    # From 5.4.0 on its encoder replaces the hidden states by None when it skips a layer.
    _of("pegasus_x", "PegasusXModel", _with(SEQ2SEQ, block_size=4, num_global_tokens=2), PAIR, dies_from="5.3.1"),
    _seq2seq("nllb_moe", "NllbMoe", num_experts=2, encoder_sparse_step=2, decoder_sparse_step=2, expert_capacity=16),
    # A decoder layer in front of which one was skipped is not in the cache of 4.44.2; 4.42.4 and 4.46.3 are well.
    _of(
        "whisper",
        "WhisperModel",
        _with(SEQ2SEQ, num_mel_bins=4, max_source_positions=10, max_target_positions=16),
        {"input_features": floats(2, 4, 20), "decoder_input_ids": ids(2, 5)},
        dies_from="4.43",
        lives_from="4.46",
    ),
    _of(
        "speech_to_text",
        "Speech2TextModel",
        _with(
            SEQ2SEQ,
            num_conv_layers=2,
            conv_kernel_sizes=(3, 3),
            conv_channels=16,
            input_feat_per_channel=4,
            max_source_positions=64,
            max_target_positions=32,
        ),
        {"input_features": floats(2, 24, 4), "decoder_input_ids": ids(2, 5)},
    ),
    # Its weights cannot be initialised from 4.53.3 on; 4.50.3 is well, releases between were not tried.
    _of(
        "speech_to_text_2",
        "Speech2Text2ForCausalLM",
        _with(SEQ2SEQ, max_target_positions=32),
        CROSS,
        "Speech2Text2Decoder",
        broken_from="4.51",
    ),
    _of("trocr", "TrOCRForCausalLM", _with(SEQ2SEQ, cross_attention_hidden_size=16), CROSS, "TrOCRDecoder"),
    # Without its prenets this model takes hidden states on both sides.
    _of(
        "speecht5",
        "SpeechT5Model",
        _with(SPEECH, **BOTH),
        {"input_values": floats(2, 7, 16), "decoder_input_values": floats(2, 5, 16)},
    ),
    # With a cache, 4.50.3 dies when every layer is skipped.
    _of(
        "opt",
        "OPTModel",
        _with(STACK, ffn_dim=16, word_embed_proj_dim=16, max_position_embeddings=32, use_cache=False),
        TEXT,
        "OPTDecoder",
    ),
    _of(
        "xglm",
        "XGLMModel",
        _with(VOCAB, d_model=16, ffn_dim=16, num_layers=4, attention_heads=2, max_position_embeddings=32),
        TEXT,
        "XGLMModel",
    ),
    _of("biogpt", "BioGptModel", _with(STACK, max_position_embeddings=32), TEXT, "BioGptModel"),
    _of(
        "flaubert",
        "FlaubertModel",
        {"n_words": 24, "vocab_size": 24, "emb_dim": 16, "n_layers": 4, "n_heads": 2, "max_position_embeddings": 32},
        TEXT,
        "FlaubertModel",
    ),
    _text(
        "kosmos2",
        "Kosmos2",
        _with(VOCAB, embed_dim=16, layers=4, ffn_dim=16, attention_heads=2, max_position_embeddings=32),
        TEXT,
        "TextTransformer",
    ),
    _text("pp_formulanet", "PPFormulaNet", SEQ2SEQ, CROSS, "TextModel"),
    _of(
        "mctct",
        "MCTCTModel",
        _with(
            STACK,
            attention_head_dim=8,
            max_position_embeddings=32,
            input_feat_per_channel=4,
            conv_kernel=(3,),
            conv_stride=(2,),
        ),
        {"input_features": floats(2, 16, 4)},
        "MCTCTEncoder",
    ),
    _of("wav2vec2_bert", "Wav2Vec2BertModel", BERT_SPEECH, MEL, "Wav2Vec2BertEncoder"),
    _of(
        "wav2vec2_bert-adapter",
        "Wav2Vec2BertModel",
        _with(BERT_SPEECH, **ADAPTER),
        MEL,
        "Wav2Vec2BertEncoder",
        "Wav2Vec2BertAdapter",
    ),
    _of("parakeet", "ParakeetEncoder", MEL_STACK, {"input_features": floats(2, 32, 8)}),
    _of("lasr", "LasrEncoder", MEL_STACK, {"input_features": floats(2, 64, 8)}),
    _of("nemotron_asr_streaming", "NemotronAsrStreamingEncoder", MEL_STACK, {"input_features": floats(2, 32, 8)}),
    _of("omniasr", "OmniASRAudioModel", SPEECH, {"input_values": floats(2, 1, 400)}, "OmniASRAudioModel"),
    _of(
        "audioflamingo3",
        "AudioFlamingo3Encoder",
        _with(STACK, num_mel_bins=4, max_source_positions=10),
        {"input_features": floats(2, 4, 20), "input_features_mask": same(1, 2, 20)},
    ),
    _of(
        "qwen2_audio",
        "Qwen2AudioEncoder",
        _with(SEQ2SEQ, num_mel_bins=4, max_source_positions=10),
        {"input_features": floats(2, 4, 20)},
    ),
    TinyModel(
        "vits",
        "transformers.models.vits.modeling_vits:VitsTextEncoder",
        "VitsConfig",
        _with(STACK, ffn_dim=16, flow_size=8),
        {"input_ids": ids(2, 7), "padding_mask": same(1, 2, 7, 1)},
        ("VitsEncoder",),
    ),
    TinyModel("musicgen", "MusicgenForCausalLM", "MusicgenDecoderConfig", CODES, TEXT_OF_CODES, ("MusicgenDecoder",)),
    TinyModel(
        "musicgen_melody",
        "MusicgenMelodyForCausalLM",
        "MusicgenMelodyDecoderConfig",
        CODES,
        TEXT_OF_CODES,
        ("MusicgenMelodyDecoder",),
    ),
    _seamless("seamless_m4t", "SeamlessM4T", "speech", "SpeechEncoder", MEL, "ConformerEncoder"),
    _seamless("seamless_m4t", "SeamlessM4T", "text", "ForTextToText", PAIR, "Encoder", "Decoder"),
    _seamless("seamless_m4t_v2", "SeamlessM4Tv2", "speech", "SpeechEncoder", MEL, "ConformerEncoder"),
    _seamless("seamless_m4t_v2", "SeamlessM4Tv2", "text", "ForTextToText", PAIR, "Encoder", "Decoder"),
    _seamless(
        "seamless_m4t_v2",
        "SeamlessM4Tv2",
        "unit",
        "TextToUnitForConditionalGeneration",
        {"inputs_embeds": floats(2, 4, 16), "char_input_ids": ids(2, 8), "char_count_per_id": same(2, 2, 4)},
        "Encoder",
        "TextToUnitDecoder",
    ),
    _of("time_series_transformer", "TimeSeriesTransformerModel", SERIES, PAST_AND_FUTURE),
    # The sparse attention of the default picks random keys; the full one keeps the forward exact.
    _of("informer", "InformerModel", _with(SERIES, attention_type="full"), PAST_AND_FUTURE),
    _of("autoformer", "AutoformerModel", _with(SERIES, label_length=4, moving_average=3), PAST_AND_FUTURE),
    TinyModel(
        "detr",
        # The first releases take no backbone but timm's; without it, a dummy is in the place of this class.
        "transformers.models.detr.modeling_detr:DetrModel",
        "DetrConfig",
        DETECTION,
        IMAGE,
        ("DetrEncoder", "DetrDecoder"),
        works_from="4.30",
    ),
    # The encoder draws up to 5.0 only. Up to 4.30 the position embeddings have 256 channels whatever
    # the configuration says.
    _of("conditional_detr", "ConditionalDetrModel", DETECTION, IMAGE, older={"4.31": {"d_model": 256}}),
    _of("table_transformer", "TableTransformerModel", DETECTION, IMAGE),
    TinyModel(
        "maskformer",
        "MaskFormerModel",
        "MaskFormerConfig",
        {
            # A copy, since the nested dict of the decoder is emptied of its model type.
            "backbone_config": _with(RESNET),
            "decoder_config": _with(DETECTION, model_type="detr"),
            "fpn_feature_size": 32,
            "mask_feature_size": 8,
        },
        IMAGE,
        ("DetrDecoder",),
        # The first releases take no backbone but Swin.
        works_from="4.30",
    ),
    # The rate of this one is the plain dropout of its configuration, and it has one layer less than
    # decoder_layers says. The image is so small that every feature level is one pixel.
    _of(
        "mask2former",
        "Mask2FormerModel",
        MASKS,
        {"pixel_values": floats(2, 3, 4, 4)},
        "Mask2FormerMaskedAttentionDecoder",
    ),
    # With levels of different sizes the original forward dies when a layer runs after a number of skipped ones that
    # is no multiple of three: the skip leaves the attention mask of another level behind.
    _of("mask2former-levels", "Mask2FormerModel", MASKS, IMAGE, "Mask2FormerMaskedAttentionDecoder", dies_from="0"),
)
