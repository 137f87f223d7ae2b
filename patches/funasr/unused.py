"""Parts of FunASR's models that no training step uses: frozen before DDP wraps the model, or else DDP looks for them.

SeacoParaformer trains on the first output of its predictor only, so the timestamp branch never gets a gradient (issue
1584: "Expected to have finished reduction"). Freezing a parameter that never gets a gradient changes nothing, and DDP
then has nothing to look for. The claim is derived from the code, so it holds for verified code only: each claim names
the hashes of the forwards (with all methods that they call) with which it was verified. Any other code, a user's
subclass for one, gets ``find_unused_parameters=True``.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Set, Tuple

from ddpfix import log
from ddpfix.patching import source_hash
from ddpfix.patching.site import Site
from ddpfix.ranks import wrap_hooks


@dataclass(frozen=True)
class Claim:
    """Parameters that no step of a training forward uses.

    Attributes:
        family: the class (of FunASR, or a subclass of it) that this is about.
        unused_names: names below which the parameters lie.
        when: whether it holds for an instance as it is configured.
        reason: why, in words.
        known_hashes: for the model ("") and those of its modules that decide it, the hashes of the code it is true for.
    """

    family: str
    unused_names: Tuple[str, ...]
    when: Callable[[Any], bool]
    reason: str
    known_hashes: Dict[str, FrozenSet[str]]


_SEACO = frozenset(("e742d6210b67", "a66383096bef"))
_CONTEXTUAL = frozenset(("1347fa3a6e75", "49cb3b918960"))
_PARAFORMER = frozenset(("1556b656ef78", "5c6cf7cc049b"))
_BICIF = frozenset(("ee47035db97a",))
_STREAMING = frozenset(("a283174d1434", "ca8704c8716c"))
_EPARAFORMER = frozenset(("728b87d6e9ff",))
_UNIASR = frozenset(("58b037c52754",))
_ALIGNER = frozenset(("160643ae47ac",))
_TIMESTAMPS = frozenset(("bbea11bad223",))
_DECODERS = frozenset(("70ff1254142a", "70ed5b2bdd8c", "fbf0f6f146d9"))

CLAIMS: Tuple[Claim, ...] = (
    Claim(
        "SeacoParaformer",
        ("predictor.upsample_cnn", "predictor.blstm", "predictor.cif_output2"),
        lambda model: True,
        "the loss takes no timestamps from the predictor",
        {"": _SEACO, "predictor": _TIMESTAMPS},
    ),
    Claim(
        "SeacoParaformer",
        ("decoder.output_layer",),
        lambda model: not model.train_decoder,
        "train_decoder is false and the loss takes the decoder's hidden states",
        {"": _SEACO, "decoder": _DECODERS},
    ),
    Claim(
        "SeacoParaformer",
        ("ctc",),
        lambda model: True,
        "the loss has no part of CTC, whatever ctc_weight is",
        {"": _SEACO},
    ),
    Claim(
        "SeacoParaformer",
        ("seaco_decoder.embed",),
        lambda model: True,
        "the hotword decoder gets embeddings (wo_input_layer: true leaves the layer out)",
        {"": _SEACO, "seaco_decoder": _DECODERS},
    ),
    Claim(
        "ContextualParaformer",
        ("bias_embed",),
        lambda model: bool(model.use_decoder_embedding),
        "use_decoder_embedding takes the decoder's embedding instead",
        {"": _CONTEXTUAL},
    ),
    Claim(
        "Paraformer",
        ("decoder.embed",),
        lambda model: model.sampling_ratio <= 0 and not _embeds_hotwords(model),
        "sampling_ratio is 0, and nothing but the sampler embeds tokens",
        {"": _PARAFORMER | _BICIF | _CONTEXTUAL | _STREAMING, "decoder": _DECODERS},
    ),
    Claim(
        "EParaformer",
        ("decoder.embed",),
        lambda model: model.sampling_ratio <= 0,
        "sampling_ratio is 0, and nothing but the sampler embeds tokens",
        {"": _EPARAFORMER, "decoder": _DECODERS},
    ),
    Claim(
        "MonotonicAligner",
        ("predictor.cif_output",),
        lambda model: True,
        "the loss takes nothing but timestamps from the predictor",
        {"": _ALIGNER, "predictor": _TIMESTAMPS},
    ),
    Claim(
        "MonotonicAligner",
        ("predictor.cif_conv1d",),
        lambda model: not getattr(model.predictor, "use_cif1_cnn", True),
        "use_cif1_cnn is false, and the loss takes nothing but timestamps from the predictor",
        {"": _ALIGNER, "predictor": _TIMESTAMPS},
    ),
    Claim(
        "UniASR",
        ("encoder2", "decoder2", "predictor2", "stride_conv"),
        lambda model: model.loss_weight_model1 >= 1,
        "loss_weight_model1 is 1, so that the second model does not run",
        {"": _UNIASR},
    ),
    Claim(
        "UniASR",
        ("encoder", "decoder", "predictor"),
        lambda model: bool(model.enable_maas_finetune),
        "enable_maas_finetune runs the first model without gradients",
        {"": _UNIASR},
    ),
    Claim(
        "UniASR",
        ("encoder2", "stride_conv"),
        lambda model: bool(model.freeze_encoder2),
        "freeze_encoder2 runs them without gradients",
        {"": _UNIASR},
    ),
)


def freeze_unused(site: Site, module: ModuleType, owner: Any) -> None:
    """Freeze what is never used where that is certain, and say where DDP has to look."""
    if site.settings["unused"] == "auto":
        frozen: weakref.WeakSet[Any] = weakref.WeakSet()
        wrap_hooks.before_wrap(site, lambda model: freeze(model, frozen))
        site.at_undo(lambda: _thaw(frozen))
    wrap_hooks.needs_flag(site, why)


def freeze(model: Any, frozen: Any) -> None:
    """Freeze the verified parts of a model that FunASR's (or another toolkit's) own trainer is about to wrap.

    In a loop of the user's own, more than the forward may reach these parameters, so nothing is frozen there; nor where
    the user has requested ``find_unused_parameters=True``.
    """
    known, value = wrap_hooks.user_choice()
    if not known or value:
        return
    for claim in _claims(model):
        parameters = dict(_trainable(model, claim))
        if parameters and is_verified(model, claim):
            for parameter in parameters.values():
                parameter.requires_grad_(False)
                frozen.add(parameter)
            log.info(
                f"{_description(model, claim, parameters)}; frozen, so that find_unused_parameters is not needed"
                " for them"
            )


def _thaw(frozen: Any) -> None:
    for parameter in list(frozen):
        parameter.requires_grad_(True)


def why(model: Any) -> str:
    """The parts that are still to be trained and never used, of this model or of one inside it."""
    descriptions = [_description(part, claim, dict(parameters)) for part, claim, parameters in unused(model)]
    return "; ".join(dict.fromkeys(descriptions))


def unused(model: Any) -> Iterator[Tuple[Any, Claim, List[Tuple[str, Any]]]]:
    """(model, claim, its trainable parameters) for a model and all models inside it."""
    for part in model.modules():
        for claim in _claims(part):
            parameters = _trainable(part, claim)
            if parameters:
                yield part, claim, parameters


def is_verified(model: Any, claim: Claim) -> bool:
    """Whether exactly this code was verified, and no hook reaches into it."""
    hooked = any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    hashes = (source_hash.of_forward(_part(model, name)) in known for name, known in claim.known_hashes.items())
    return not hooked and all(hashes)


def _claims(model: Any) -> List[Claim]:
    homes = [(level.__name__, str(getattr(level, "__module__", ""))) for level in type(model).__mro__]
    if any(home.startswith("torch.distributed") for _, home in homes):
        # A sharded module is a subclass made by torch, and its parameters must not be frozen one by one.
        return []
    names = {name for name, home in homes if home.startswith("funasr.")}
    return [claim for claim in CLAIMS if claim.family in names and claim.when(model)]


def _trainable(model: Any, claim: Claim) -> List[Tuple[str, Any]]:
    """The claim's parameters that ask for a gradient and have no second name among those that are used."""
    inside: Dict[str, Any] = {}
    used: Set[int] = set()
    for prefix, part in model.named_modules(remove_duplicate=False):
        for name, parameter in part._parameters.items():
            whole = f"{prefix}.{name}" if prefix else name
            if parameter is None:
                continue
            if any(whole.startswith(f"{start}.") for start in claim.unused_names):
                inside[whole] = parameter
            else:
                used.add(id(parameter))
    return [(name, p) for name, p in inside.items() if p.requires_grad and id(p) not in used]


def _part(model: Any, name: str) -> Any:
    return getattr(model, name) if name else model


def _embeds_hotwords(model: Any) -> bool:
    names = {level.__name__ for level in type(model).__mro__}
    return "SeacoParaformer" in names or bool(getattr(model, "use_decoder_embedding", False))


def _description(model: Any, claim: Claim, parameters: Dict[str, Any]) -> str:
    parts = [start for start in claim.unused_names if any(name.startswith(f"{start}.") for name in parameters)]
    return f"{type(model).__name__} never uses {', '.join(parts)} ({len(parameters)} parameters): {claim.reason}"
