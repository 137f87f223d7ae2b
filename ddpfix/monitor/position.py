"""The position of this rank: its collectives and steps are counted anyway, its stack is read on demand.

Nothing runs in a step for it. As long as collectives begin, a look compares their numbers; only when none has begun
since the last look is the stack of the main thread read.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from types import CodeType, FrameType
from typing import Dict, List, Optional, Tuple

from ddpfix import devices
from ddpfix.groups import calls, internals
from ddpfix.monitor import loaders, places, processes
from ddpfix.monitor.places import StackFrame
from ddpfix.monitor.watch import Rank
from ddpfix.rules import facts
from ddpfix.rules.facts import Position
from ddpfix.system import System
from ddpfix.user_code import OWN

# What a frame is known by, without keeping it alive: itself, its code, and its instruction.
_Key = Tuple[int, CodeType, int]
# Phases that name what a rank does that moves: if one of these was seen at all, else the last one.
_TELLING = (facts.DEBUGGER, facts.EVALUATION, facts.CHECKPOINT)
# Seconds in one instruction, in which a GPU works off all that it was given.
_STANDS = 3.0


class Tracker:
    """Follows the main thread of this rank."""

    def __init__(self, here: Rank) -> None:
        self._here, self._step = here, here.step
        self._thread = threading.main_thread()
        self._counts: Dict[str, int] = {}
        self._progressed()

    def _progressed(self) -> None:
        self._at, self._step_then = System.monotonic(), self._step()
        self._step_now, self._stepped_at = self._step_then, self._at
        self._keys: Tuple[_Key, ...] = ()
        self._still_since = self._at
        # How many of the outer frames have been there in each look.
        self._common: Optional[int] = None
        self._moved = False
        self._seen: Dict[str, places.Place] = {}
        self._computed = System.process_time()

    def look(self) -> float:
        """Look once; returns the seconds since the last collective began (where none are counted, the last step)."""
        counts = internals.counts()
        if counts != self._counts or (not counts and self._step() != self._step_then):
            self._counts = counts
            self._progressed()
            return 0.0
        if self._step() != self._step_now:
            self._step_now, self._stepped_at = self._step(), System.monotonic()
        if not self.is_over():
            self._sample()
        return System.monotonic() - self._at

    def is_over(self) -> bool:
        """Return whether the program has come to its end."""
        return not self._thread.is_alive()

    def still(self) -> float:
        """Seconds for which the main thread has stood where it is, or has been over."""
        return System.monotonic() - self._still_since

    def may_wait(self) -> bool:
        """Return whether this rank may be waiting for others where it stands; cheaper than :meth:`position`."""
        return not self.is_over() and self._place(_frames(self._thread)).phase in facts.WAITING

    def _sample(self) -> None:
        frames = _frames(self._thread)
        keys = tuple((id(frame), frame.f_code, frame.f_lasti) for frame in _without_polls(frames))
        if not frames or keys == self._keys:
            return
        same = _same(self._keys, keys)
        if self._common is None:
            self._common = len(keys)
        else:
            self._common, self._moved = min(self._common, same), True
        self._keys, self._still_since = keys, System.monotonic()
        place = self._place(frames)
        self._seen.pop(place.phase, None)
        self._seen[place.phase] = place

    def position(self) -> Position:
        """Return the position of this rank now."""
        now = System.monotonic()
        head = (self._here.number, self._step(), self._counts)
        if self.is_over():
            done, called = self._here.work().ended(), self._here.called()
            since = now - self._at
            return Position(*head, facts.ENDED, "", "", still=self.still(), since=since, work=done, called=called)
        frames = _frames(self._thread)
        taken = max(now - self._at, 0.001)
        steps = (head[1] or 0) - (self._step_then or 0)
        # A forward that waits has begun: a rank that trains on without collectives begins more than that one.
        trains = steps > 1 and now - self._stepped_at < taken / 2
        moving = trains or (self._moved and self.still() < taken / 2)
        place = self._place_of_moving(frames) if moving else self._place(frames)
        loading, number = _loading(frames)
        call = calls.of(frames)
        state = processes.lasting(System.pid(), f"task/{getattr(self._thread, 'native_id', None) or 0}/stat")
        disk = f"it {processes.in_words(state)}" if state == processes.DISK else ""
        if trains:
            place = place._replace(phase=facts.TRAINING, what="training")
        return Position(
            *head,
            *place,
            call=call.text,
            moving=moving,
            still=self.still(),
            since=now - self._at,
            idle=System.process_time() - self._computed < 0.25 * taken,
            steps=steps,
            batch=None if loading is None else loading.batches,
            epoch=None if loading is None else loading.epoch,
            loads=number,
            # What the system tells of the workers of the loader in which the rank stands, and of a disk.
            trouble="; ".join(filter(None, (loading.workers if loading and place.phase == facts.LOADER else "", disk))),
            peer=call.peer,
            patience=call.limit,
            loops=places.loops_of(frames),
            work=self._here.work(),
            called=self._here.called(),
        )

    def _place(self, frames: List[FrameType]) -> places.Place:
        return _place(frames, self.still() >= _STANDS)

    def _place_of_moving(self, frames: List[FrameType]) -> places.Place:
        """Return the innermost function that the rank has been in all the time, and what it was seen to do there."""
        inner = _place(frames[: self._common or 1])
        now = _place(frames)
        seen = next((self._seen[phase] for phase in _TELLING if phase in self._seen), now)
        return places.Place(seen.phase, seen.what, inner.where, inner.source)


def _frames(thread: threading.Thread) -> List[FrameType]:
    """Return the frames of a thread, the outermost one first."""
    frame = sys._current_frames().get(thread.ident or 0)
    found: List[FrameType] = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found[::-1]


def _without_polls(frames: List[FrameType]) -> List[FrameType]:
    """Return the frames down to one that polls: what runs below it changes, and means no movement."""
    for number, frame in enumerate(frames):
        if frame.f_code.co_name == "_try_get_data" and StackFrame.of(frame).is_in("torch/utils/data/dataloader.py"):
            return frames[: number + 1]
    while len(frames) > 1 and frames[-1].f_code.co_filename.startswith(OWN):
        frames = frames[:-1]
    return frames


def _same(before: Tuple[_Key, ...], now: Tuple[_Key, ...]) -> int:
    """Return how many outer frames are the same ones; their lines may have changed."""
    number = 0
    for one, other in zip(before, now):
        if one[:2] != other[:2]:
            break
        number += 1
    return number


def _place(frames: List[FrameType], stands: bool = False) -> places.Place:
    return places.classify(list(map(StackFrame.of, frames)), _training(frames), bool(devices.in_use()), stands)


def _training(frames: List[FrameType]) -> Optional[bool]:
    """Return whether the outermost module whose forward runs is in training mode."""
    for frame in frames:
        if frame.f_code.co_name == "_call_impl" and StackFrame.of(frame).is_in("torch/nn/modules/module.py"):
            training = getattr(calls.variables(frame).get("self"), "training", None)
            return training if isinstance(training, bool) else None
    return None


def _loading(frames: List[FrameType]) -> Tuple[Optional[loaders.Loading], int]:
    """Return the loader that the rank stands in, or its only one; and how many are in use."""
    known: List[loaders.Loading] = []
    with contextlib.suppress(Exception):
        known = loaders.alive()
    for frame in frames:
        if frame.f_code.co_name == "__next__" and StackFrame.of(frame).is_in("torch/utils/data/dataloader.py"):
            with contextlib.suppress(Exception):
                return loaders.of(calls.variables(frame)["self"]), len(known)
    return (known[0] if len(known) == 1 else None), len(known)
