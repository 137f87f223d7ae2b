"""What a probe found, as data. Nothing here needs torch: the command line reads it in a process without."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Dict, List, Optional


@dataclass
class Skipping:
    """A module that skips layers at random.

    Attributes:
        name: the module, as ``named_modules`` has it.
        kind: its class.
        rate: the rate in force, the largest one where it has several.
        layers: how many layers it holds; 0 for a layer that draws for itself.
        seen: the share of its layers' turns that were skipped in the steps observed; None where it cannot be counted.
    """

    name: str
    kind: str
    rate: float
    layers: int = 0
    seen: Optional[float] = None


@dataclass
class Checkpoint:
    """A module whose activations are recomputed in backward.

    Attributes:
        name: the module, as ``named_modules`` has it.
        kind: its class.
        reentrant: which kind of ``torch.utils.checkpoint`` it is.
    """

    name: str
    kind: str
    reentrant: bool


@dataclass
class Result:
    """What was seen of one model.

    A *pass* is a forward in training with the backward of its loss; parameters are named as by ``named_parameters``.

    Attributes:
        model: its class.
        steps: how many steps were taken.
        passes: how many passes there were in them.
        trainable: how many parameters ask for a gradient.
        frozen: how many do not.
        always: parameters that got no gradient in any pass.
        sometimes: parameters that got none in some passes, and in how many.
        why: for each of these parameters, the reason, as far as it is known.
        never_ran: modules with parameters that train, and that were never called; without those inside of them.
        outside: those parameters that lie behind an output that is not part of the loss: DDP takes them for used.
        hidden: parameters with a gradient that DDP does not find behind the output (reentrant checkpointing): with the
            flag, it takes them for unused.
        twice: parameters that get a gradient more than once in one backward, which DDP ends with an error.
        skips: what skips layers at random.
        reasons: other known reasons why DDP has to look for unused parameters, of patches that are active.
        checkpointing: what is recomputed in backward.
        shared: parameters with several names, each a list of names.
        repeated: modules that hold parameters and are called more than once in a pass, and how often at most.
        loss: which loss was used; "" where the program has its own.
        under: how DDP was asked for, where the program wraps the model.
        setting: the argument of DistributedDataParallel that follows, "" where none is needed.
        line: how the user of a toolkit sets that, in words and a line to paste; "" where the setting says it all.
        unused: the value of DDPFIX_UNUSED that follows.
        advice: what to do, in sentences.
        notes: what else was noticed.
        unaveraged: the user's line where forwards under ``no_sync`` are, if every optimizer step used their gradients
            alone; "" else.
    """

    model: str
    steps: int = 0
    passes: int = 0
    trainable: int = 0
    frozen: int = 0
    always: List[str] = field(default_factory=list)
    sometimes: Dict[str, int] = field(default_factory=dict)
    why: Dict[str, str] = field(default_factory=dict)
    never_ran: List[str] = field(default_factory=list)
    outside: List[str] = field(default_factory=list)
    hidden: List[str] = field(default_factory=list)
    twice: List[str] = field(default_factory=list)
    skips: List[Skipping] = field(default_factory=list)
    reasons: List[str] = field(default_factory=list)
    checkpointing: List[Checkpoint] = field(default_factory=list)
    shared: List[List[str]] = field(default_factory=list)
    repeated: Dict[str, int] = field(default_factory=dict)
    loss: str = ""
    under: str = ""
    setting: str = ""
    line: str = ""
    unused: str = "auto"
    advice: List[str] = field(default_factory=list)
    notes: List[str] = field(default_factory=list)
    unaveraged: str = ""

    def as_dict(self) -> Dict[str, Any]:
        """Return all of it as plain data, which JSON can hold."""
        return asdict(self)

    def __str__(self) -> str:
        from ddpfix.probing import text

        return "\n".join(text.of_model(self.as_dict()))
