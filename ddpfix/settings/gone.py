"""Removed names, each of which is answered with one line, and changes nothing else; and renamed ones, which still work.

A key is written as users write it: a variable (``DDPFIX_X``), the id of a patch (``torch.x``), a command
(``ddpfix x``) or an option of it (``ddpfix x --y``), a name of the package (``ddpfix.x``) or an extra (``ddpfix[x]``).
The value says what to do instead.
"""

from __future__ import annotations

from typing import Dict, Iterator, Optional, Tuple

from ddpfix.settings.known import PREFIX

REMOVED_IN, RENAMED_UNTIL = "1.1.0", "1.2.0"
_SKIPPING = ("torch", "transformers", "funasr", "speechbrain", "fastnlp", "wenet", "torchaudio", "espnet", "s3prl")
GONE: Dict[str, str] = {
    "DDPFIX_NEMO_LAYERDROP": "DDPFIX_NEMO_DEPTH=0 leaves NeMo as shipped, with gradients of zeros for a dropped layer",
    "DDPFIX_ATTENTION": "dataset_conf.max_token_length and batch_size bound a batch",
    "DDPFIX_EVALUATION": "evaluate model.module, which needs no other rank",
    "torch.evaluation": "evaluate model.module, which needs no other rank",
    "DDPFIX_ADVICE": "torch warns by itself where find_unused_parameters=True finds nothing",
    "torch.advice": "torch warns by itself where find_unused_parameters=True finds nothing",
    "torch.leaving": "drop the wrapped model, then call destroy_process_group(); Python 3.14 needs neither",
    "torch.samples": "DataLoader(..., sampler=DistributedSampler(dataset)) gives each rank its own part",
    "funasr.hub": "set ++frontend_conf.cmvn_file= and ++tokenizer_conf.token_list= beside other keys of these sections",
    "funasr.freeze": "use the spelling of freeze_param that your release of FunASR reads",
    "funasr.init_param": "check that the path exists: FunASR trains from random weights otherwise",
    "funasr.validation_precision": "FunASR's train.py validates in full precision",
    "speechbrain.clip_groups": "SpeechBrain 1.0 and newer clip an optimizer's first group of parameters",
    "fastnlp.logs": "redirect the output of each rank yourself: torchrun --log-dir DIR --redirects 3",
    **{
        f"{fix}_off": f"DDPFIX_{fix.upper().replace('.', '_')}=0 switches {fix} off, whatever DDPFIX_LAYERDROP says"
        for fix in (*(f"{toolkit}.layerdrop" for toolkit in _SKIPPING), "nemo.depth")
    },
    "funasr.unused": "torch.finalize trains these models; ++train_conf.find_unused_parameters=true works, too",
    "speechbrain.spec_augment": "torch.finalize trains models whose masked_spec_embed is never used",
    "transformers.outputs": "transformers 4.33 and newer register their outputs with torch",
    "transformers.renaming": "transformers 4.36.1 and newer rename a checkpoint on one rank",
    "speechbrain.frozen_parameters": "SpeechBrain 0.5.11 and newer freeze what has freeze=True",
    "speechbrain.cuda": "SpeechBrain 0.5.11 and newer take --device=cuda",
    "speechbrain.single_batch": "give each rank two batches or more: use a smaller batch_size, or fewer ranks",
    "speechbrain.no_hparams": "Brain(..., hparams={}) trains under DDP",
    "fastnlp.hint": "DDP's error has the line for Trainer, whatever the driver is",
    "speechbrain.interval": "from SpeechBrain 0.5.11 on only the main process saves within an epoch",
    "DDPFIX_BUCKET_VIEW": "DistributedDataParallel(model, gradient_as_bucket_view=True) does it",
    "torch.bucket_view": "DistributedDataParallel(model, gradient_as_bucket_view=True) does it",
    "torch.unsent": "all buckets are sent: it saved 15 % of a step on networks of 200 MB/s, and nothing on others",
    "torch.aligned": "DDP's bucket_cap_mb is the size of its buckets",
    "ddpfix.traffic": "it counted buckets that were not sent, and all are sent now",
    "wenet.failures": "torch.failures says on every rank which rank failed first, and with which error",
    "ddpfix top": "python -m ddpfix report DIR makes a page of a job that runs, too",
    "ddpfix report --open": "open the page in a browser: it is one file",
    "ddpfix report --tensorboard": "python -m ddpfix report DIR --json FILE has the same numbers",
    "ddpfix demo --model": "the demo trains a WavLM",
    "ddpfix demo --loop": "the demo has a plain DDP loop; python -m ddpfix run starts any other script",
    "ddpfix[completion]": "python -m ddpfix COMMAND --help lists options and values",
    "ddpfix[tensorboard]": "python -m ddpfix report DIR --json FILE needs no package",
    "ddpfix[trace]": "a trace is JSON lines, and needs no package",
}

# Each works for one release more, and a line says so. Both names are those of settings, or both those of patches. Where
# two of them have become one, the later one here counts: a job that asked for an error does not lose it.
RENAMED: Dict[str, str] = {
    "torch.unused": "torch.flag",
    "torch.late": "torch.finalize",
    "torch.steps": "torch.agreement",
    "torch.store_file": "torch.init_file",
    "torch.drift": "torch.divergence",
    "torch.past": "torch.bypass",
    "speechbrain.past": "speechbrain.bypass",
    "speechbrain.yaml_options": "speechbrain.options",
    "speechbrain.device": "speechbrain.options",
    "speechbrain.precision": "speechbrain.options",
    "speechbrain.main_saves": "speechbrain.checkpoints",
    "funasr.bf16": "funasr.precision",
    "funasr.autocast": "funasr.precision",
    "funasr.bf16_scaler": "funasr.precision",
    "funasr.scaler": "funasr.precision",
    "funasr.samplers": "funasr.memory",
    "wenet.typing_names": "wenet.imports",
    "wenet.sox_buffer": "wenet.imports",
    "wenet.checkpointing": "wenet.unused",
    "wenet.flags": "wenet.overrides",
    "DDPFIX_DRIFT_STEPS": "DDPFIX_DIVERGENCE",
    "DDPFIX_DRIFT": "DDPFIX_DIVERGENCE",
    "DDPFIX_PAST_WRAPPER": "DDPFIX_BYPASS",
}
# Values of a setting: what each stands for, and what to do instead.
VALUES: Dict[str, Tuple[str, str]] = {
    "DDPFIX_UNTESTED=apply": ("unchanged", "leave it out, it is the default"),
    "DDPFIX_UNTESTED=leave": ("off", "DDPFIX_UNTESTED=off applies nothing to a release that was not tested"),
}


def answer(key: str, shown: str = "") -> str:
    """Return the line about a removed name.

    Args:
        key: of :data:`GONE` or :data:`VALUES`.
        shown: the name as it was given, where that differs.
    """
    if key in RENAMED:
        now = RENAMED[key] if shown in ("", key) else _variable(RENAMED[key])
        return f"{shown or key} was renamed in {REMOVED_IN}, and works until {RENAMED_UNTIL}: use {now}"
    return f"{shown or key} was removed in {REMOVED_IN}: {GONE[key] if key in GONE else VALUES[key][1]}"


def of_variable(variable: str) -> Optional[str]:
    """Return the key of a variable that was removed or renamed: that of a setting, or the switch of a patch."""
    return next((key for key in (*RENAMED, *GONE) if key[:6] != "ddpfix" and _variable(key) == variable.upper()), None)


def age(variable: str) -> int:
    """Return the place of a variable among those of one source: renamed ones first, so that a new name counts."""
    key = of_variable(variable)
    names = list(RENAMED)
    return names.index(key) if key in RENAMED else len(names)


def _variable(key: str) -> str:
    return key if key.startswith(PREFIX) else PREFIX + key.upper().replace(".", "_")


def options(command: str) -> Iterator[Tuple[str, str]]:
    """Yield the options that a command had under these names, with their keys.

    Settings are options of ``run``, ``plan`` and ``probe``.
    """
    for key in (*GONE, *RENAMED):
        if key.startswith(f"ddpfix {command} --"):
            yield key.rpartition(" ")[2], key
        elif key.startswith(PREFIX) and command in ("run", "plan", "probe"):
            yield "--" + key[len(PREFIX) :].lower(), key
