"""The order of the stages of :mod:`.ddp`."""

from __future__ import annotations

# Where each stage stands, the first one outermost: it sees the arguments first, and the end of a forward last.
ORDER = (
    "trace",  # Times all that the other stages do as well, as a part of the forward.
    "clock",  # Counts every training forward, also one in which a later stage fails.
    "agreement",  # Must come before every stage that communicates: all ranks have to be present.
    "flag",  # Every later stage depends on whether DDP looks for unused parameters.
    "skipped_layers",  # Records what a forward has skipped, for the end of its backward.
    "accumulation",  # Tells the steps of this model which micro-batches belong together.
    "divergence",  # Learns of the user's communication hook, and when a forward has ended.
    "bypass",  # Looks at the finished wrapper only, and changes nothing of it.
    "finalize",  # Reads the output of DDP and its reducer, which no later stage changes.
    "reentrant",  # Notes where a step begins, in models that the stages above have the flag set for.
    "buffers",  # Notes which forwards wait for a backward, which no stage above changes.
    "diagnosis",  # Innermost: it completes the error that DDP raises.
)
# The stages that read DDP's flag or reducer when a model is built.
REDUCER = ("finalize", "diagnosis")
# Who follows the process group, the first one told first that it is up, and last that it ends.
GROUP = (
    "agreement",  # The other ranks of a model wait for a rank that has left its mark.
    "failures",  # Says how the program has ended, after the one whose reports it may need.
    "hang",  # Looks at no rank that ends.
    "divergence",  # Says how a run has trained, before it is told how the run has ended.
    "init_file",  # Innermost: it watches torch's own call.
)
# Who is called at the steps of optimizers, before and after them.
STEPS = (
    "trace",  # The time of a step has what the others do before it, and not what they do after it.
    "divergence",  # Looks at what the step before has left.
    "finalize",  # Innermost: it reduces gradients that wait, and a closure's.
)
# Whose models have backwards followed.
BACKWARD = (
    "finalize",  # Ends the reduction of a step that repeats the previous one.
    "diagnosis",  # Completes the error that a backward, or the stage above, has raised.
)
