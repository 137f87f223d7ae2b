"""Has patches wait until the program does what they are for: most processes that import a toolkit never do it.

Where a patch will change a function, a stub stands meanwhile. Some functions are those with which a program begins, as
``init_process_group`` is: whoever calls the stub of such a one first opens the gate. The patches are then put in place
where the stubs were, below the layers that other patchers have put on since, as if they had never waited. The other
stubs only keep the place, and hand every call on.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable, ContextManager, Iterable, List, Optional, Set, Tuple

from ddpfix import log
from ddpfix.modules import assign
from ddpfix.patching.attribution import looks_like
from ddpfix.patching.layers import CHANGES, LOCK, Record, named_copies, relink, take_back_copies


class _Stub:
    """One place of a gate.

    Attributes:
        record: of the stub, while it is in place.
        then: what a call of the stub calls: the function that was there, or what stands there when the gate is open.
    """

    def __init__(self, owner: Any, attribute: str, gate: Optional[Gate]) -> None:
        was = vars(owner)[attribute]
        self.owner, self.attribute, self.then = owner, attribute, was
        self.record = Record(owner, attribute, was, _waiting(self, was, gate), False)

    def put(self) -> None:
        assign(self.owner, self.attribute, self.record.now)
        CHANGES.in_place.append(self.record)


class Gate:
    """The stubs of one activation, and what happens when the first of them is called.

    Args:
        lock: is held while the gate opens.
        on_open: puts the patches in place that wait.
    """

    def __init__(self, lock: ContextManager[Any], on_open: Callable[[], None]) -> None:
        self._lock, self._on_open = lock, on_open
        self._stubs: List[_Stub] = []
        # Open from the moment when the first call comes; until all is in place, the calls of other threads wait.
        self.is_open = self._is_settled = False

    def put(self, places: Iterable[Tuple[Any, str, bool]]) -> None:
        """Put stubs in the places of functions.

        Args:
            places: (module or class, name, whether a call opens the gate). What a class has from a base, and what is no
                function, gets none.
        """
        with LOCK:
            new = [
                _Stub(owner, attribute, self if opens else None)
                for owner, attribute, opens in places
                if _is_function(vars(owner).get(attribute))
            ]
            # Looked for first: what the modules of functions hold is compared with what is still there.
            copies = named_copies([each.record for each in new if isinstance(each.owner, ModuleType)])
            for stub in new:
                stub.put()
            for record, module, name in copies:
                assign(module, name, record.now)
            self._stubs += new

    def open(self) -> None:
        """Take the stubs away and put the patches in place, once; nothing escapes but what ends the process."""
        with self._lock, LOCK:
            if self.is_open:
                return
            self.is_open = True
            tops = [_uncover(stub) for stub in self._stubs]
            take_back_copies([stub.record for stub in self._stubs])
            before = set(map(id, CHANGES.in_place))
            try:
                self._on_open()
            except Exception as error:
                log.warning(f"some fixes could not be applied: {error!r}")
            for stub, top in zip(self._stubs, tops):
                _cover(stub, top, before)
            self._is_settled = True

    def undo(self) -> List[str]:
        """Take away the stubs that are there; returns a message for each that could not be."""
        problems = []
        with LOCK:
            taken: List[Tuple[Any, Any]] = []
            undone: List[Record] = []
            for stub in reversed(self._stubs):
                # Another patcher may keep the stub for ever; then it does nothing.
                stub.then = stub.record.was
                if stub.record in CHANGES.in_place:
                    undone.append(stub.record)
                    problem = stub.record.undo(taken)
                    problems.extend([problem] if problem else [])
            take_back_copies(undone)
            self.is_open = self._is_settled = True
        return problems

    def pass_through(self) -> None:
        """What a stub does first: open the gate, or wait for the thread that does."""
        if not self._is_settled:
            self.open()


def _is_function(found: Any) -> bool:
    return callable(found) and not isinstance(found, (type, staticmethod, classmethod))


def _waiting(stub: _Stub, was: Any, gate: Optional[Gate]) -> Callable[..., Any]:
    in_class = isinstance(stub.owner, type)

    def first(*args: Any, **kwargs: Any) -> Any:
        if gate is not None:
            gate.pass_through()
        # A layer that somebody has put around a method may learn its instance only when it is bound.
        if in_class and args and args[0] is not None:
            return stub.then.__get__(args[0], type(args[0]))(*args[1:], **kwargs)
        return stub.then(*args, **kwargs)

    return looks_like(was, first)


def _uncover(stub: _Stub) -> Any:
    """Put the original in its place again; returns what stood there, the stub or what another patcher has put there."""
    top = vars(stub.owner)[stub.attribute]
    assign(stub.owner, stub.attribute, stub.record.was)
    return top


def _cover(stub: _Stub, top: Any, before: Set[int]) -> None:
    """Put what the patches have made of the original where the stub was, also below layers of others."""
    record = stub.record
    # Who keeps the stub in a place where nobody can find it calls this from now on.
    stub.then = vars(stub.owner)[stub.attribute]
    # Somebody may have taken the stub away: then the layers are put around what he has left.
    if top is not record.now and top is not record.was:
        # A plain wrapper of a method calls what it took from the class, with the instance as an argument.
        taken = getattr(stub.owner, stub.attribute)
        assign(stub.owner, stub.attribute, top)
        relink(top, record.now, taken)
    _move_records(stub, before)
    for other in CHANGES.in_place:
        # A layer of ours that was put around the stub goes back to what is there now.
        if other.was is record.now:
            other.was = stub.then


def _move_records(stub: _Stub, before: Set[int]) -> None:
    """The records of the new layers stand where the stub's stood: the records of what lies above them come later."""
    place = CHANGES.in_place.index(stub.record)
    new = [
        each
        for each in CHANGES.in_place
        if id(each) not in before and each.owner is stub.owner and each.attribute == stub.attribute
    ]
    for each in new:
        CHANGES.in_place.remove(each)
    CHANGES.in_place[place : place + 1] = new
