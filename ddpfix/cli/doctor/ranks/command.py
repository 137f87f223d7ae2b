"""``doctor --ranks`` on one rank: what it does, in which order, and with which exit code it ends."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional

from ddpfix import _env
from ddpfix.cli.doctor import examination, private
from ddpfix.cli.doctor.finding import BLOCKS
from ddpfix.cli.doctor.ranks import group, place, record, verdict
from ddpfix.cli.doctor.ranks.compare import finding, listed
from ddpfix.cli.doctor.ranks.place import Place
from ddpfix.cli.doctor.ranks.rendezvous import Rendezvous

# Seconds that the other ranks wait longer than rank 0, which tells what there is to tell.
_GRACE = 5.0
_NETWORK = "check that the hosts reach each other (firewall, interface), and that every host was started"


def show(limit: float, backend: Optional[str], as_json: bool) -> int:
    """Do it, and have rank 0 print what was found.

    Args:
        limit: seconds to wait for the ranks, and again for what they do together.
        backend: asked for, or None.
        as_json: print JSON.

    Returns:
        0, 1 if something stops a training (rank 0 and ranks that are stuck), 2 without a launcher.
    """
    try:
        here = place.read(os.environ)
    except place.PlaceError as error:
        _env.say(str(error))
        return 2
    report = examination.make()
    if "error" in report["versions"].get("torch", {"error": ""}):
        _env.say(f"rank {here.rank}: {report['findings'][0]['text']}; {report['findings'][0]['cure']}")
        return 1
    with _own_output():
        return Rank(here, limit, backend, as_json).take_part(record.make(here.rank, report, os.environ), report)


@contextmanager
def _own_output() -> Iterator[None]:
    """What libraries write to the standard output goes to the standard error: gloo of torch 2.8 does, amid the JSON."""
    plain = sys.stdout
    try:
        plain.flush()
        kept = os.dup(1) if plain.fileno() == 1 else None
        if kept is not None:
            os.dup2(2, 1)
    except (AttributeError, OSError, ValueError):
        # No such descriptor: there is nothing that a library could write to.
        kept = None
    if kept is None:
        yield
        return
    sys.stdout = os.fdopen(kept, "w", encoding=plain.encoding, errors=plain.errors)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        sys.stdout.close()
        sys.stdout = plain


class Rank:
    """This rank's part.

    Args:
        here: its place.
        limit: seconds.
        backend: asked for, or None.
        as_json: print JSON.
    """

    def __init__(self, here: Place, limit: float, backend: Optional[str], as_json: bool) -> None:
        self._here, self._limit, self._asked, self._as_json = here, limit, backend, as_json
        self._records: List[record.Record] = []
        self._backend: Optional[str] = None

    def take_part(self, own: record.Record, report: Dict[str, Any]) -> int:
        """Run all of it; return the exit code."""
        try:
            rendezvous = Rendezvous(self._here, self._limit)
            if not rendezvous.arrive(own):
                _env.say(f"two processes say that they are rank {self._here.rank}: each needs a RANK of its own")
                return 1
            notes = Rendezvous(self._here, self._limit, serve=False)
        except Exception as error:
            return self._alone(error)
        if self._here.rank == 0:
            return self._lead(rendezvous, notes, report)
        return self._follow(rendezvous, notes, report)

    def _alone(self, error: Exception) -> int:
        """Return the store cannot be reached, or made."""
        if self._here.rank == 0 and not self._here.agent:
            what = f"rank 0 cannot keep a store at MASTER_ADDR, port {self._here.port}"
            cure = "another job may have the port: choose another MASTER_PORT; MASTER_ADDR has to be this host"
        else:
            what = f"rank {self._here.rank} cannot reach the store at MASTER_ADDR, port {self._here.port}"
            cure = f"rank 0 has not come within {self._limit:g} s, or {_NETWORK}"
        _env.say(f"{what} ({private.error(error)}): {cure}")
        return 1

    def _lead(self, rendezvous: Rendezvous, notes: Rendezvous, report: Dict[str, Any]) -> int:
        all_here = rendezvous.wait_for_all(self._limit)
        found = rendezvous.records()
        self._records = [record.Record(*found[rank]) for rank in sorted(found)]
        problems = self._absent(rendezvous) if not all_here else []
        self._backend = verdict.backend(self._records, self._asked, problems) if all_here else None
        rendezvous.decide(self._backend)
        words: Dict[int, Any] = {}
        if self._backend is not None:
            deadline = group.Deadline(self._limit, lambda: self._stuck(notes))
            own = self._work(rendezvous, notes, report)
            notes.say(own)
            # A rank that could not do it with the others does not wait long for them.
            words = notes.words(self._limit if own["error"] is None else _GRACE)
            problems += self._behind(notes) if len(words) < self._here.size else []
            deadline.end()
        code = self._print(words, problems)
        notes.end(_GRACE)
        group.Group.close()
        return code

    def _follow(self, rendezvous: Rendezvous, notes: Rendezvous, report: Dict[str, Any]) -> int:
        try:
            self._backend = rendezvous.verdict(self._limit + _GRACE)
        except Exception:
            return self._without_first(rendezvous)
        code = 0
        if self._backend is not None:
            deadline = group.Deadline(self._limit + _GRACE, lambda: _end(self._here.rank, notes))
            own = self._work(rendezvous, notes, report)
            try:
                notes.say(own)
            except Exception as error:
                own["error"] = own["error"] or f"the store has ended: {private.error(error)}"
            code = 0 if own["error"] is None else 1
            if code:
                _env.say(f"rank {self._here.rank}: {own['error']}")
            notes.leave(self._limit)
            deadline.end()
        else:
            notes.leave(self._limit)
        group.Group.close()
        # By now rank 0 has told all; a launcher that sees a rank fail ends the others.
        return code

    def _work(self, rendezvous: Rendezvous, notes: Rendezvous, report: Dict[str, Any]) -> Dict[str, Any]:
        patience = min(self._limit / 2, report["timeouts_s"].get("ddpfix") or self._limit)
        part = group.Group(self._here, rendezvous, notes, self._limit)
        return part.run(str(self._backend), record.agreed_facts(), patience)

    def _absent(self, rendezvous: Rendezvous) -> List[Dict[str, Any]]:
        if rendezvous.is_twice():
            text = "two processes say that they are the same rank"
            return [finding(BLOCKS, "ranks", text, "give each process a RANK of its own (torchrun does)")]
        return [self._not_here(rendezvous.missing())]

    def _not_here(self, missing: List[int]) -> Dict[str, Any]:
        text = f"{len(missing)} of {self._here.size} ranks did not come within {self._limit:g} s"
        return finding(BLOCKS, "ranks", text, f"see the logs of these ranks, and {_NETWORK}", missing)

    def _without_first(self, rendezvous: Rendezvous) -> int:
        """Rank 0 has not come, though its store, or that of torch elastic, is there."""
        try:
            if rendezvous.speaks():
                missing = self._not_here(rendezvous.missing())
                _env.say(
                    f"rank {self._here.rank}: {missing['text']}: rank {listed(missing['ranks'])}; {missing['cure']}"
                )
        except Exception as error:
            _env.say(f"rank {self._here.rank}: the store has ended: {private.error(error)}")
        return 1

    def _stuck(self, notes: Rendezvous) -> None:
        """Called in another thread of rank 0: the limit is over, and the ranks wait for each other."""
        try:
            problems = self._behind(notes)
            self._print(notes.words(0.0), problems)
        finally:
            sys.stdout.flush()
            os._exit(1)

    def _behind(self, notes: Rendezvous) -> List[Dict[str, Any]]:
        """Return the ranks that wait, and the ranks that they wait for."""
        lines = "; ".join(group.behind(notes.stages(), self._here.size))
        text = f"the ranks did not come to an end within {self._limit:g} s, and those that are behind are: {lines}"
        return [finding(BLOCKS, "ranks", text, f"the first one named is what the others wait for: {_NETWORK}")]

    def _print(self, words: Dict[int, Any], problems: List[Dict[str, Any]]) -> int:
        result = verdict.make(self._here, self._backend, self._records, words, problems)
        verdict.show(result, self._as_json)
        return 1 if result["blocked"] else 0


def _end(rank: int, notes: Rendezvous) -> None:
    """Called in another thread of a rank that is stuck, after rank 0 had the time to tell it."""
    _env.say(f"rank {rank} waited for the others in vain; rank 0 tells who is behind")
    os._exit(1)
