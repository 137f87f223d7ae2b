"""The engine: settings and matrix give decisions, the finder reports imports, and patches are put in place.

A patch is *armed* when it waits for its target, *registered* when it will act later (when a model is wrapped, say), and
*applied* when it is in place. What a patch has done is read from the records of its site. A patch that raises is
undone and reported, and the import that it hooked succeeds.
"""

from __future__ import annotations

import sys
import threading
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Tuple

from ddpfix import __version__, _switch, import_hook, log
from ddpfix.matrix import detect, loader, resolve, untested
from ddpfix.matrix.resolve import Decision
from ddpfix.modules import globals_of, initializing, is_lazy
from ddpfix.patching import site
from ddpfix.patching.gate import Gate
from ddpfix.patching.layers import is_outdated
from ddpfix.patching.site import Kept, PatchError, Site
from ddpfix.settings import reading
from ddpfix.state import State
from ddpfix.waiting import Armed, Waiting, top

if TYPE_CHECKING:
    # Nobody has asked for a report yet.
    from ddpfix.patching.report import Report

_LOCK = threading.RLock()
_RECOGNISING = threading.Lock()


class Engine:
    """The state of one activation."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        self.matrix = loader.load()
        # What patches keep in common for as long as this activation lasts.
        self.kept = Kept()
        self.settings = reading.read(arguments, self.matrix.patches)
        # Toolkits that are known by their marks only: they are looked for when one is imported, or a report is made.
        self.unseen = set(self.matrix.marks)
        self.toolkits = detect.installed_versions(self.matrix, later=self.unseen)
        self.newer = resolve.newer(self.matrix, self.toolkits)
        self._decided = {d.patch: d for d in resolve.resolve(self.matrix, self.toolkits, self.settings)}
        self.notes: List[str] = []
        self.gate = Gate(_LOCK, self._opened)
        self.waiting = Waiting()
        # The functions that get a door, until they have it.
        self.doors = list(self.matrix.gate)
        for patch in self.matrix.in_order():
            self._arm(self._decided[patch])
        self.sites: Dict[str, Site] = {}
        self.places: Dict[str, List[str]] = {}
        self.failed: Dict[str, str] = {}
        # Why a patch is left out here, and why in a few words for several of them.
        self.left_out: Dict[str, Tuple[str, str]] = {}
        self.deferred: List[ModuleType] = []

    @property
    def decisions(self) -> List[Decision]:
        """One a patch, in the matrix's order."""
        for toolkit in sorted(self.unseen):
            self.recognise(toolkit)
        return list(self._decided.values())

    def recognise(self, toolkit: str) -> None:
        """Find the version of a toolkit without metadata, and arm its patches; an absent one is looked for again."""
        version = detect.recognise(toolkit, self.matrix.marks[toolkit])
        if version is None:
            return
        installed = {**self.toolkits, toolkit: version}
        ids = [name for name in self.matrix.in_order() if self.matrix.patches[name].toolkit == toolkit]
        own_decisions = [
            resolve.decide(self.matrix, self.matrix.patches[name], installed, self.settings) for name in ids
        ]
        everything = {**self._decided, **{decision.patch: decision for decision in own_decisions}}
        decided = [resolve.settled(self.matrix, decision, everything) for decision in own_decisions]
        # A finder calls this while it holds the import lock, so nothing is imported while this lock is held.
        with _RECOGNISING:
            if toolkit in self.unseen:
                self.toolkits[toolkit] = version
                self.newer = resolve.newer(self.matrix, self.toolkits)
                self._decided.update((decision.patch, decision) for decision in decided)
                for decision in decided:
                    self._arm(decision)
                self.unseen.discard(toolkit)

    def _arm(self, decision: Decision) -> None:
        if decision.action == State.APPLY:
            self.waiting.arm(decision, self.matrix.patches[decision.patch].gated)

    def wanted(self, name: str) -> bool:
        if self.unseen and top(name) in self.unseen:
            self.recognise(top(name))
            if self.toolkits[top(name)] == detect.UNRECOGNISED:
                log.info(f"the package {name} is not a known release: it is left unchanged")
        if name in self.toolkits or self.waiting.any_for(name):
            return True
        return any(door.module == name for door in self.doors)

    def importing(self, module: ModuleType) -> None:
        """Put in place what the module will need when it is executed, which is about to happen."""
        # Nearly every module has nothing of the kind, and the lock is not needed to know that.
        if any(each.target.before for each in self.waiting.of_module(module.__name__)):
            with _LOCK:
                self._put_in_place(module, before=True)

    def imported(self, module: ModuleType) -> None:
        """Put in place what waits for this module. Nothing escapes: the import has to succeed."""
        with _LOCK, site.one_search(module.__name__):
            name = module.__name__
            if name in self.toolkits:
                self._put_doors(name)
                if name == "torch" and untested.is_told_of_torch():
                    # Of the others it is said when a model is wrapped, where there are fixes of torch at all.
                    self.tell_untested([each for each in self._decided.values() if each.toolkit == name])
                ready = [part for part in self.deferred if top(part.__name__) == name]
                self.deferred = [part for part in self.deferred if part not in ready]
                for part in ready:
                    # If the module was imported a second time by now, the newer one is patched.
                    self._put_in_place(sys.modules.get(part.__name__, part))
            elif initializing(top(name)):
                # The patches import from the toolkit, which works only when its own import has finished.
                self.deferred.append(module)
                return
            else:
                self._put_doors(top(name))
            self._put_in_place(module)

    def _put_doors(self, toolkit: str) -> None:
        """Put doors around the functions that open the gate, as far as modules of this toolkit are imported."""
        for door in [each for each in self.doors if top(each.module) == toolkit and each.module in sys.modules]:
            self.doors.remove(door)
            try:
                if not self.gate.is_open and any(each.is_gated for each in self.waiting):
                    owner = site.locate(sys.modules[door.module], door.attribute, door.expects)
                    self.gate.put(owner, door.attribute.split(".")[-1])
            except Exception as error:  # The patches find out by themselves what has changed here, and say so.
                log.debug(f"patches cannot be held back: {error!r}")
                self.gate.open()

    def _opened(self) -> None:
        """Put in place what was held, and nothing a second time: other patches may be in place in the same modules."""
        with site.one_search():
            for module in self._imported():
                if not initializing(top(module.__name__)):
                    self._put_in_place(module, only_gated=True)
                elif module not in self.deferred:
                    self.deferred.append(module)

    def _put_in_place(self, module: ModuleType, before: bool = False, only_gated: bool = False) -> None:
        for each in [each for each in self.waiting.of_module(module.__name__) if each.target.before == before]:
            done = each.decision.patch in self.failed or each.decision.patch in self.left_out
            if not done and (self.gate.is_open or not each.is_gated) and (each.is_gated or not only_gated):
                self._apply(each, module)

    def catch_up(self, hook: import_hook.Finder) -> None:
        """Patch what had been imported before ddpfix, or will have been at its first use."""
        for name, module in list(sys.modules.items()):
            if is_lazy(module) and self.wanted(name):
                hook.hook(globals_of(module)["__spec__"])
        if any(door.module in sys.modules and not initializing(top(door.module)) for door in self.doors):
            # The program may have made a group, or compiled a model.
            self.gate.stay_open()
        with site.one_search():
            for module in self._imported():
                self.imported(module)

    def _imported(self) -> Iterator[ModuleType]:
        """Yield the modules that something waits for, as far as their code has ended."""
        for name, module in list(sys.modules.items()):
            is_there = globals_of(module).get("__name__") == name and self.wanted(name)
            if is_there and not initializing(name):
                yield module

    def _apply(self, waiting: Armed, module: ModuleType) -> None:
        patch = waiting.decision.patch
        entry = self.matrix.patches[patch]
        own = self.sites.setdefault(patch, Site(patch, self.settings, self, entry.instead, entry.examined))
        before = own.changes()
        try:
            at = waiting.target
            owner = None if at.attribute == "*" else site.locate(module, at.attribute, at.expects)
            if self._is_changed(waiting.decision):
                return
            _code(entry.code_at(at))(own, module, owner)
        except Exception as error:
            needing = "".join(f" {name} needs it and is left out." for name in self._drop(patch))
            self.failed[patch] = f"{waiting.target}: {error if isinstance(error, PatchError) else repr(error)}"
            log.warning(
                f"{patch} could not be applied and {module.__name__} is unchanged: {self.failed[patch]}.{needing}"
                f" {reading.switch_name(patch)}=0 silences this."
            )
            return
        if own.changes() > before:
            self.places.setdefault(patch, []).append(f"{module.__name__}:{waiting.target.attribute}")
            log.debug(f"{patch} applied at {module.__name__}:{waiting.target.attribute}")
        if not waiting.for_many:
            self.waiting.remove(waiting)

    def _is_changed(self, decision: Decision) -> bool:
        """Leave a patch out where a release that nobody has tested has changed what it relies on."""
        own = {decision.toolkit: False} if decision.nearest else {}
        examined = {**own, **dict.fromkeys(self.newer, True)}
        if not examined or decision.forced or decision.row is None:
            return False
        # It reads code, which takes modules that a usual job does not need.
        from ddpfix.patching import unchanged

        patch = self.matrix.patches[decision.patch]
        known = unchanged.Known(self.matrix.code, self.matrix.parameters)
        places = [*map(str, decision.row.targets), *patch.also, *decision.row.also]
        changed = unchanged.first_changed(known, places, decision.row.rests_on, examined)
        if changed is None and not (patch.probe and examined.get(decision.toolkit) and not _code(patch.probe)()):
            return False
        reason = untested.difference(self.matrix, decision, changed, self.toolkits)
        others = self._drop(decision.patch)
        self.left_out[decision.patch] = (reason, resolve.CHANGED)
        log.warning("; ".join([f"{decision.patch} is left out: {reason}", *(f"so is {name}" for name in others)]))
        return True

    def _drop(self, patch: str) -> List[str]:
        """Take back what a patch has done so far, and leave out those that need it, which are returned."""
        needing = [d.patch for d in self._decided.values() if patch in self.matrix.patches[d.patch].needs]
        others = [name for name in needing if self._decided[name].action == State.APPLY]
        for name in (patch, *others):
            if name in self.sites:
                self.notes.extend(self.sites[name].undo())
            self.places.pop(name, None)
        self.left_out.update((name, (f"it needs {patch}", f"they need {patch}")) for name in others)
        return others

    def tell_untested(self, decisions: Optional[List[Decision]] = None) -> None:
        """Say once which imported toolkits are left as they are: of those decisions, else of all."""
        among = self.decisions if decisions is None else decisions
        skipped = [each for each in among if each.action == State.SKIP]
        for name, text in untested.lines(self.matrix, skipped).items():
            if name in sys.modules:
                log.warning(text)

    def verify(self) -> List[str]:
        """Messages about patches that are no longer in place: a toolkit may import a module of its own twice."""
        records = [(patch, record) for patch, own in self.sites.items() for record in own.in_force()]
        lost = [(patch, record) for patch, record in records if is_outdated(record.owner) or not record.in_place()]
        messages = [f"{patch} is no longer in place at {r.home}.{r.attribute}" for patch, r in lost]
        return list(dict.fromkeys(messages))

    def undo(self) -> List[str]:
        problems = [problem for own in reversed(list(self.sites.values())) for problem in own.undo()]
        problems += self.gate.undo()
        self.sites.clear()
        self.kept.clear()
        log.NOTED.forget()
        self.waiting.clear()
        return problems

    def report(self) -> Report:
        from ddpfix.patching import report

        return report.made(self, __version__)

    def facts(self) -> Dict[str, str]:
        """Return the facts that must be equal on the ranks that have them; rank 0 may import more than the others."""
        imported = [toolkit for toolkit in self.toolkits if toolkit in sys.modules]
        return resolve.facts(__version__, imported, self.settings, self.decisions, {**self.failed, **self.left_out})


def _code(name: str) -> Any:
    file, _, function = name.partition(":")
    return getattr(import_module("ddpfix.patches." + file), function)


_engine: Optional[Engine] = None


def current() -> Optional[Engine]:
    """Return the engine of the activation in force, or None."""
    return _engine


def activate(**arguments: object) -> Report:
    """Switch ddpfix on in this process. Doing so twice is one activation.

    Args:
        arguments: settings, which win over the environment. With their defaults: unused="auto", layerdrop="sync",
            overrides="apply", untested="unchanged", uneven="auto", memory="on", cache="off", seed="auto", timeout="60",
            divergence="warn", bypass="auto", trace="off", hang="300", hang_exit="off", log="info". ``python -m ddpfix
            plan --help`` explains them. A fix is switched by its name with underscores (``torch_flag=0``).

    Raises:
        SettingsError: a setting has a name or a value that is not known.
        MatrixError: the compatibility matrix cannot be read.
    """
    switch_on(**arguments)
    return report()


def switch_on(**arguments: object) -> None:
    """Do what :func:`activate` does, without a report: a report looks for every toolkit."""
    global _engine
    with _LOCK:
        if _switch.refused() or _switch.is_second(import_hook.of_another_copy()):
            return
        if _engine is None or arguments:
            # Built first, so that bad input leaves the activation in force as it is.
            engine = Engine(arguments)
            if _engine is not None:
                deactivate()
            # The finder may be running just now (it woke us): it has to stay the same one.
            _engine = engine
            log.set_level(engine.settings["log"])
            for line in engine.settings.gone:
                log.warning(line)
            hook = import_hook.install(frozenset())
            hook.watched = frozenset({"torch", *engine.matrix.toolkits})
            hook.wake, hook.wanted = None, engine.wanted
            hook.importing, hook.imported = engine.importing, engine.imported
            engine.catch_up(hook)


def deactivate() -> List[str]:
    """Undo everything: every touched attribute is the object that it was. Returns what could not be taken back."""
    global _engine
    with _LOCK:
        import_hook.remove()
        if _engine is None:
            return []
        problems = _engine.undo()
        _engine = None
        for problem in problems:
            log.warning(problem)
        return problems


def report() -> Report:
    """Return the patches that are applied, armed and skipped, with reasons; ``active`` is False where ddpfix is off."""
    if _engine is not None:
        return _engine.report()

    from ddpfix.patching.report import Report

    return Report(__version__, False)
