"""Parts of FunASR's models that no training step uses: frozen before DDP wraps the model, or else DDP looks for them.

SeacoParaformer trains on the first output of its predictor only, so the timestamp branch never gets a gradient (issue
1584: "Expected to have finished reduction"). Freezing a parameter that never gets a gradient changes nothing, and DDP
then has nothing to look for. The claim is derived from the code, so it holds for examined code only: the matrix has the
hashes of the forwards (with all methods that they call) for which each claim was verified. Any other code, a user's
subclass for one, gets ``find_unused_parameters=True``.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Callable, Dict, Iterator, List, Set, Tuple

from ddpfix import log
from ddpfix.models import internals, wrap_hooks
from ddpfix.patching import source_hash
from ddpfix.patching.site import Site
from ddpfix.user_code import module_of


@dataclass(frozen=True)
class Claim:
    """Parameters that no step of a training forward uses.

    Attributes:
        family: the class (of FunASR, or a subclass of it) that this is about.
        unused_names: names below which the parameters lie.
        when: whether it holds for an instance as it is configured.
        examined: for the model ("") and those of its modules that decide it, the names of the code it is true for; the
            matrix has the hashes.
    """

    family: str
    unused_names: Tuple[str, ...]
    when: Callable[[Any], bool]
    reason: str
    examined: Dict[str, Tuple[str, ...]]


CLAIMS: Tuple[Claim, ...] = (
    Claim(
        "SeacoParaformer",
        ("predictor.upsample_cnn", "predictor.blstm", "predictor.cif_output2"),
        lambda model: True,
        "the loss takes no timestamps from the predictor",
        {"": ("SeacoParaformer",), "predictor": ("CifPredictorV3",)},
    ),
    Claim(
        "SeacoParaformer",
        ("decoder.output_layer",),
        lambda model: not model.train_decoder,
        "train_decoder is false and the loss takes the decoder's hidden states",
        {"": ("SeacoParaformer",), "decoder": ("decoders",)},
    ),
    Claim(
        "SeacoParaformer",
        ("ctc",),
        lambda model: True,
        "the loss has no part of CTC, whatever ctc_weight is",
        {"": ("SeacoParaformer",)},
    ),
    Claim(
        "SeacoParaformer",
        ("seaco_decoder.embed",),
        lambda model: True,
        "the hotword decoder gets embeddings (wo_input_layer: true leaves the layer out)",
        {"": ("SeacoParaformer",), "seaco_decoder": ("decoders",)},
    ),
    Claim(
        "ContextualParaformer",
        ("bias_embed",),
        lambda model: bool(model.use_decoder_embedding),
        "use_decoder_embedding takes the decoder's embedding instead",
        {"": ("ContextualParaformer",)},
    ),
    Claim(
        "Paraformer",
        ("decoder.embed",),
        lambda model: model.sampling_ratio <= 0 and not _embeds_hotwords(model),
        "sampling_ratio is 0, and nothing but the sampler embeds tokens",
        {
            "": ("Paraformer", "BiCifParaformer", "ContextualParaformer", "ParaformerStreaming"),
            "decoder": ("decoders",),
        },
    ),
    Claim(
        "EParaformer",
        ("decoder.embed",),
        lambda model: model.sampling_ratio <= 0,
        "sampling_ratio is 0, and nothing but the sampler embeds tokens",
        {"": ("EParaformer",), "decoder": ("decoders",)},
    ),
)


def freeze_unused(site: Site, module: ModuleType, owner: Any) -> None:
    """Freeze what is never used where that is certain, and say where DDP has to look."""
    if site.settings["unused"] == "auto":
        frozen: weakref.WeakSet[Any] = weakref.WeakSet()
        wrap_hooks.before_wrap(site, lambda model: freeze(site, model, frozen), waiting=True)
        site.at_undo(lambda: _thaw(frozen))
    wrap_hooks.needs_flag(site, why)


def freeze(site: Site, model: Any, frozen: Any) -> None:
    """Freeze the verified parts of a model that FunASR's (or another toolkit's) own trainer is about to wrap.

    In a loop of the user's own, more than the forward may reach these parameters, so nothing is frozen there; nor where
    the user has requested ``find_unused_parameters=True``.
    """
    known, value = wrap_hooks.user_choice()
    if not known or value:
        return
    for claim in _claims(model):
        parameters = dict(_trainable(model, claim))
        if parameters and is_verified(site, model, claim):
            for parameter in parameters.values():
                parameter.requires_grad_(False)
                frozen.add(parameter)
            log.info(
                f"{_description(model, claim, parameters)}. Frozen, so DDP needs no find_unused_parameters for them"
            )


def _thaw(frozen: Any) -> None:
    for parameter in list(frozen):
        parameter.requires_grad_(True)


def why(model: Any) -> str:
    """Return the parts that are still to be trained and never used, of this model or of one inside it."""
    descriptions = [_description(part, claim, dict(parameters)) for part, claim, parameters in unused(model)]
    return "; ".join(dict.fromkeys(descriptions))


def unused(model: Any) -> Iterator[Tuple[Any, Claim, List[Tuple[str, Any]]]]:
    """(model, claim, its trainable parameters) for a model and all models inside it."""
    for part in model.modules():
        for claim in _claims(part):
            parameters = _trainable(part, claim)
            if parameters:
                yield part, claim, parameters


def is_verified(site: Site, model: Any, claim: Claim) -> bool:
    """Return whether exactly this code was examined, and no hook reaches into it."""
    if any(internals.has_forward_hooks(part) for part in model.modules()):
        return False
    return all(_is_examined(site, _part(model, name), names) for name, names in claim.examined.items())


def _is_examined(site: Site, module: Any, names: Tuple[str, ...]) -> bool:
    found = source_hash.of_forward(module)
    return any(found in site.examined.get(name, ()) for name in names)


def _claims(model: Any) -> List[Claim]:
    homes = [(level.__name__, module_of(level)) for level in type(model).__mro__]
    if any(home.startswith("torch.distributed") for _, home in homes):
        # A sharded module is a subclass made by torch, and its parameters must not be frozen one by one.
        return []
    names = {name for name, home in homes if home.startswith("funasr.")}
    return [claim for claim in CLAIMS if claim.family in names and claim.when(model)]


def _trainable(model: Any, claim: Claim) -> List[Tuple[str, Any]]:
    """Return the claim's parameters that ask for a gradient and have no second name among those that are used."""
    inside: Dict[str, Any] = {}
    used: Set[int] = set()
    for prefix, part in model.named_modules(remove_duplicate=False):
        for name, parameter in internals.parameters_in(part).items():
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
