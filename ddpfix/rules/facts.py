"""What one rank knows of itself, and tells the others when a job hangs or a rank fails."""

from __future__ import annotations

import re
from typing import Dict, NamedTuple, Optional, Sequence, Tuple

# What a rank does, as far as its stack tells.
DEBUGGER, COLLECTIVE, BACKWARD, WRAPPER, DEVICE = "debugger", "collective", "backward", "wrapper", "device"
EVALUATION, CHECKPOINT, LOADER, STEP, FORWARD = "evaluation", "checkpoint", "loader", "step", "forward"
OTHER, ENDED, TRAINING = "other", "ended", "training"
# A rank may be waiting for others where it stands.
WAITING = (COLLECTIVE, BACKWARD, WRAPPER, DEVICE)
GPU = "the GPU"
# How a rank is that does not answer.
GONE, STOPPED, TRACED, LEFT, SILENT = "gone", "stopped", "traced", "left", "silent"
# How a rank leaves its job, beside LEFT (its process group) and ENDED (its program has returned).
EXITED, FAILED, UNDONE = "exited", "failed", "undone"
# Calls to or from one rank.
POINT_TO_POINT = ("send", "recv", "irecv", "isend", "batch_isend_irecv")
# Seconds; a longer limit is none that a program catches at the end of each epoch.
SOON = 600.0

# What a function is called that evaluates.
EVALUATES = re.compile(r"(^|_)(eval|evaluate|evaluation|valid|validate|validation|inference)(_|$)", re.IGNORECASE)

# A function on the stack: its file, its name, the line that runs, and the loops around that line, from first to last
# line each, the outermost first.
Standing = Tuple[str, str, int, Sequence[Tuple[int, int]]]


class TrainingProgress(NamedTuple):
    """What one rank has done.

    Attributes:
        step: the training forwards that it has begun; None where nothing counts them.
        backwards: the outermost backwards that it has begun; 0 where nothing counts them.
        skipped: how many training forwards had no backward, or none that reached the model, before the next one.
        place: the user's line of the forward after the last of these; "" where there were too many of them.
        waits: whether the last forward still waits for its backward.
        missed: whether backward was called after the last forward, and no gradient has reached the model.
    """

    step: Optional[int] = None
    backwards: int = 0
    skipped: int = 0
    place: str = ""
    waits: bool = False
    missed: bool = False

    def ended(self) -> TrainingProgress:
        """Return the same of a rank whose program is over: the backward of its last forward will not come."""
        return self._replace(skipped=self.skipped + self.waits, waits=False)


class Called(NamedTuple):
    """The collectives that a rank's program has called.

    Attributes:
        counts: the number of calls by line, in words.
        last: the line of the last one.
    """

    counts: Dict[str, int] = {}
    last: str = ""


class End(NamedTuple):
    """How a rank has left its job.

    Attributes:
        how: LEFT, ENDED, EXITED, FAILED, or UNDONE where ddpfix was, and nothing more is known of the rank.
        text: of a failure, in a sentence.
        step: the training forwards that it had begun; None where it failed, or nothing counts them.
        work: what it had done, if it has said so.
        called: the collectives that its program had called, likewise.
    """

    rank: int
    how: str
    text: str = ""
    step: Optional[int] = None
    work: TrainingProgress = TrainingProgress()
    called: Called = Called()

    @classmethod
    def load(cls, values: Sequence[object]) -> End:
        """Return an end from the lists that JSON made of it."""
        found = cls(*values)  # type: ignore[arg-type]
        return found._replace(work=TrainingProgress(*found.work), called=Called(*found.called))


class Position(NamedTuple):
    """Where a rank is, as it tells the others.

    Attributes:
        step: the training forwards that it has begun; None where nothing counts them.
        counts: the collectives that it has begun, by group.
        phase: one of those above.
        call: kind and sizes of the collective that the program called, in words; "" for others.
        moving: whether its stack has changed since the last collective began.
        still: seconds for which the stack has stood as it is.
        since: seconds since the last collective began.
        idle: whether the process has computed next to nothing in this time.
        steps: training forwards that it has begun without a collective.
        batch: batches that its loader has given; None where that is not known.
        epoch: of its loader's sampler; None where nobody sets it.
        loads: how many loaders are in use.
        trouble: what the system tells of its workers, and of a disk, in words.
        peer: the only rank that it waits for, in a call to or from one rank; None for others.
        loops: the functions on its stack, with the loops around their lines.
        patience: seconds after which the call ends with an error by itself, by the program's own choice; None else.
        called: the collectives that the program itself has called, by line.
    """

    rank: int
    step: Optional[int]
    counts: Dict[str, int]
    phase: str
    what: str
    where: str
    source: str = ""
    call: str = ""
    moving: bool = False
    still: float = 0.0
    since: float = 0.0
    idle: bool = True
    steps: int = 0
    batch: Optional[int] = None
    epoch: Optional[int] = None
    loads: int = 0
    trouble: str = ""
    peer: Optional[int] = None
    patience: Optional[float] = None
    loops: Sequence[Standing] = ()
    work: TrainingProgress = TrainingProgress()
    called: Called = Called()

    @classmethod
    def load(cls, values: Sequence[object]) -> Position:
        """Return a position from the lists that JSON made of it."""
        found = cls(*values)  # type: ignore[arg-type]
        loops = tuple((*each[:3], tuple((start, end) for start, end in each[3])) for each in found.loops)
        return found._replace(work=TrainingProgress(*found.work), loops=loops, called=Called(*found.called))

    def may_wait(self) -> bool:
        """Return whether it may be waiting for other ranks."""
        return self.phase in WAITING and not self.moving

    def may_compute(self) -> bool:
        """Return whether it may as well compute: it stands in code that may wait for a GPU."""
        return self.phase == DEVICE and self.what != GPU


class SilentRank(NamedTuple):
    """A rank that does not answer, and how its process is.

    Attributes:
        how: one of those above.
        process: its number and host, in words; "" where ddpfix is not active there.
        hint: how its process has ended, in a sentence.
        end: how it has left its job, if it has said so.
    """

    rank: int
    how: str
    process: str = ""
    hint: str = ""
    end: Optional[End] = None

    @property
    def work(self) -> TrainingProgress:
        """Return what it has done, if it has said so."""
        return TrainingProgress() if self.end is None else self.end.work

    @property
    def called(self) -> Called:
        """Return the collectives that its program has called, likewise."""
        return Called() if self.end is None else self.end.called
