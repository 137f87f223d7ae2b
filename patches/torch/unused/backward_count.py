"""Steps with several backwards: how many a model has, on all ranks alike.

A loop that calls backward for one output after the other is right in plain torch if each parameter gets its gradient in
one of them: DDP completes its buckets in the last one. In the first such step DDP is finalized after each backward and
armed again for the next. From then on the ranks know how many there are, and the reduction is finalized after the last
one, so that no gradient is communicated twice.

Ranks that do not call backward equally often would mix up the gradients of different steps. So a step that has more or
fewer backwards than the one before begins, or ends, with a roll-call; the others cost nothing.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

from ddpfix import log
from ddpfix.exchange import roll_call
from ddpfix.models.internals import in_backward

from ..internals import process_groups
from ..internals.tensors import written
from ..pipeline import ddp
from ..pipeline.optimizers import Steps
from .states import ARMED, OPTIMIZER, PENDING, PLACE, RUNNING, Reduction, all_finalized, reductions


class Backwards:
    """The backwards of one model's steps."""

    def __init__(self, model: ddp.Wrapped, steps: Steps) -> None:
        self._model = model
        self._roll: Optional[roll_call.RollCall] = None
        # How many backwards of this step have ended, and how many all ranks expect in a step.
        self.done, self.expected = 0, 1
        # Whether each parameter gets its gradient in one backward of a step: one reduction is enough then.
        self.one_gradient_each = False
        # Whether this step has more backwards than the one before.
        self._more = False
        # The parameters that each reduction of this step has left out.
        self._left_out: List[Dict[int, Any]] = []
        self._pending: Optional[Gradients] = None
        # Whether gradients of this step were used between two of its backwards.
        self.used_between = False
        # Whether a step of this model may wait for a further backward.
        self.may_wait = False
        steps.follow(PLACE, before=_step_begins)

    @property
    def usual(self) -> bool:
        """Whether this step is like most: one backward, after which everything was reduced."""
        return self.done == self.expected == 1 and not self._more and not self._left_out

    def is_last(self) -> bool:
        """Return whether the backward that runs is the last one before the reduction."""
        return not self.one_gradient_each or self.done + 1 >= self.expected

    def ended(self) -> bool:
        """End a backward; return whether the reduction is to be finalized now."""
        last = self.is_last()
        self.done += 1
        return last

    def one_more(self) -> bool:
        """Begin a backward after the reduction, or RollCallError; return whether the step before had none."""
        if self.done < self.expected:
            return False
        self._more = True
        self._check_all_ranks(f"backward {self.done + 1} of a step of {type(self._model.wrapper.module).__name__}")
        return True

    def agree_to(self, wanted: bool) -> bool:
        """Return whether ``wanted`` is true on all ranks."""
        return self._roll_call().same("yes" if wanted else "no") and wanted

    def reduced(self, left_out: Dict[int, Any]) -> None:
        """Record that a reduction has ended, to which all parameters but these have contributed."""
        if self.done > 1 or self.expected > 1 or left_out:
            self._left_out.append(left_out)
        self._pending = None

    def step_ended(self) -> None:
        """The next step begins. RollCallError: the ranks have not called backward equally often."""
        done, more = self.done, self._more
        self.done, self._more = 0, False
        if more or (done < self.expected and not self.one_gradient_each):
            self._check_all_ranks(f"a step with {done} backwards of {type(self._model.wrapper.module).__name__}")
            self.expected = done
            self.one_gradient_each = done > 1 and self._once_on_all_ranks()
        self._left_out.clear()
        self.used_between = False

    def _once_on_all_ranks(self) -> bool:
        reductions = len(self._left_out)
        numbers = range(len(self._model.parameters))
        disjoint = all(sum(number in left for left in self._left_out) == reductions - 1 for number in numbers)
        complete = disjoint and not self.used_between
        agreed = self._roll_call().same("each parameter once" if complete else "some more than once, or never")
        if complete and agreed:
            log.debug(f"a step has {self.expected} backwards, and one reduction after the last one")
        return complete and agreed

    def _check_all_ranks(self, word: str) -> None:
        if not self._roll_call().same(word):
            raise roll_call.RollCallError(
                f"ddpfix: ranks do not call backward equally often: this rank has {word}, others have more or fewer.\n"
                "Call backward equally often on every rank, or once, for the sum of the losses."
            )

    def _roll_call(self) -> roll_call.RollCall:
        if self._roll is None:
            group = self._model.wrapper.process_group
            ranks = process_groups.ranks_of(group)
            self._roll = roll_call.RollCall(self._model.name_together(), ranks, roll_call.limit_of(group))
        return self._roll

    # The time between two backwards.

    def wait(self) -> None:
        """Wait for more backwards before the reduction; a step may still have fewer."""
        self._pending = Gradients(self._model.parameters)
        self.may_wait = True

    def use(self, reduction: Reduction) -> None:
        """Reduce pending gradients before an optimizer uses them; RuntimeError: they were changed before."""
        if self._pending is not None and self._pending.changed():
            raise RuntimeError(
                f"ddpfix: gradients of {type(self._model.wrapper.module).__name__} were changed before DDP averaged"
                f" them.\nEarlier steps ran {self.expected} backwards, and DDP averages after the last one; this step"
                f" ran {self.done}.\nCall backward equally often in each step, or once, for the sum of the losses."
            )
        reduction.on(OPTIMIZER)

    def explain(self) -> str:
        """Return why gradients are missing in torch's error about them; "" if no backward is pending."""
        if self._pending is None:
            return ""
        return (
            f"earlier steps ran {self.expected} backwards, the last one ran {self.done}, and no optimizer of torch has"
            " stepped since"
        )


class Gradients:
    """A record of the gradients of one model after a backward."""

    def __init__(self, parameters: Sequence[Any]) -> None:
        self._parameters = parameters
        self._gradients = [written(parameter) for parameter in parameters]

    def changed(self) -> bool:
        now = map(written, self._parameters)
        return any(one is not other or count != before for (one, count), (other, before) in zip(now, self._gradients))


def _step_begins(optimizer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    return None if all_finalized() else _complete_before(optimizer, args, kwargs)


def _complete_before(optimizer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """Average the gradients that an optimizer is about to use; return its arguments with another closure."""
    held = [reduction for reduction in reductions() if _holds(optimizer, reduction)]
    for reduction in held:
        if reduction.used.is_due and not in_backward():
            # The backward was one of an engine that was called by hand.
            reduction.used.settle()
        if reduction.state is RUNNING or (reduction.state is ARMED and in_backward()):
            # An optimizer within the backward uses gradients before anything can average them, as in plain torch.
            reduction.left_to_torch = True
        else:
            reduction.backward_missed()
    affected = [reduction for reduction in held if reduction.backwards.may_wait]
    if not affected:
        return None
    _complete(affected)
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if not callable(closure):
        return None

    def reducing() -> Any:
        # The optimizer uses the gradients as soon as a closure returns.
        value = closure()
        _complete(affected)
        return value

    if "closure" in kwargs:
        return args[:1], {**kwargs, "closure": reducing}
    return (args[0], reducing, *args[2:]), kwargs


def _complete(held: Sequence[Reduction]) -> None:
    for reduction in held:
        if reduction.state is PENDING:
            reduction.backwards.use(reduction)


def _holds(optimizer: Any, reduction: Reduction) -> bool:
    own = {id(parameter) for parameter in reduction.parameters}
    return any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"])
