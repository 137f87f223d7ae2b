"""What is kept at the level of modules, and why: everything else belongs to an activation, or to a model's record.

A new name fails here until somebody gives a reason. What several functions, targets or patches of one activation share
is an object of theirs (``Site.keep``), and what is known of a model under DDP is in its ``Wrapped``.
"""

from __future__ import annotations

from typing import Dict, List

import pytest

from tests.support import registries

_REGISTERED = "one list of hooks for one place; Site.register puts in, and undo takes out"
_BY_RUN = "state of the run, for functions that are called without a site; undo empties it"
_BY_MODEL = "state of models, for functions that are called without a site or a wrapper; undo empties it"

# Emptied by undo: tests/ranks/test_left_over.py.
OF_ACTIVATION: Dict[str, str] = {
    "ddpfix.engine._engine": "the activation itself",
    "ddpfix.import_hook._finder": "the hook in sys.meta_path, which has to be one",
    "ddpfix.layerdrop.code_copy.SKIPPABLE_CHECKS": _REGISTERED,
    "ddpfix.layerdrop.cover.COVERED": "the record of each class that is covered, found by a module's class",
    "ddpfix.layerdrop.shared_method.OBSERVED": _REGISTERED,
    "ddpfix.layerdrop.shared_method.RECORDERS": _REGISTERED,
    "ddpfix.layerdrop.recompute._PAST": "calls that wait for their backward, by module: autograd knows no more than it",
    "ddpfix.layerdrop.training._REPLICAS": "the public skipped_layers() asks by wrapper, of DDP and of FSDP",
    "ddpfix.log.LISTENERS": "the log knows no site; who listens takes itself out",
    "ddpfix.log.SETTINGS": "notes for the trace, from rooms that know no site",
    "ddpfix.log._heard": "lines that are given to listeners once",
    "ddpfix.log._RANK": "the rank of the last group, for lines that come after it",
    "ddpfix.log._logged": "lines that are logged once",
    "ddpfix.log._logged_about": "lines that are logged once an object, for as long as it lives",
    "ddpfix.patches.funasr.entry.READ_BY_US": _BY_RUN,
    "ddpfix.patches.funasr.entry._AROUND_MAIN": _REGISTERED,
    "ddpfix.patches.funasr.entry._BEFORE_DOWNLOAD": _REGISTERED,
    "ddpfix.patches.funasr.entry._BEFORE_MAIN": _REGISTERED,
    "ddpfix.patches.speechbrain.line.AFTER": _REGISTERED,
    "ddpfix.patches.speechbrain.line.BEFORE": _REGISTERED,
    "ddpfix.patches.speechbrain.line.KNOWN": _REGISTERED,
    "ddpfix.patches.torch.pipeline.model.MODELS": "the records of all models, by wrapper: the place of their state",
    "ddpfix.patches.torch.pipeline.ddp._STAGES": "the pipeline; copies of models find it without a site",
    "ddpfix.patches.torch.unused.states._ALL": _BY_MODEL,
    "ddpfix.patches.torch.unused.flag.FLAG_ALTERNATIVES": _REGISTERED,
    "ddpfix.patching.layers.IN_PLACE": "the changes of all sites in their order: they may lie on one another",
    "ddpfix.patching.site._REPLACED": "empty outside of a search for copies",
    "ddpfix.patching.site._SEARCHES": "empty outside of a search for copies",
    "ddpfix.exchange.lowest_rank._PENDING": "lines that wait some seconds for a lower rank: each takes itself out",
    "ddpfix.monitor.sys_exit._PROVED": "what has ended the program, which is one",
    "ddpfix.monitor.sys_exit._IN_PLACE": "what stands in sys.exit, which is one",
    "ddpfix.models.wrap_hooks._BEFORE": _REGISTERED,
    "ddpfix.models.wrap_hooks._BEFORE_WAITING": _REGISTERED,
    "ddpfix.models.wrap_hooks._EXCLUDED": _REGISTERED,
    "ddpfix.models.wrap_hooks._NOT_REENTRANT": _REGISTERED,
    "ddpfix.models.wrap_hooks._REASONS": _REGISTERED,
    "ddpfix.trace.writer._OPEN": "what the one hook at forks calls",
}
# They outlive an activation, and the next one may see them.
OF_PROCESS: Dict[str, str] = {
    "ddpfix._env._reported": "a wrong value of DDPFIX is told once a process, before there is an activation",
    "ddpfix.layerdrop.cover._RATES": "where a class reads its rate: a cache of its source, by class",
    "ddpfix.log.UNLISTED": "threads of ours that run: each takes itself out at its end",
    "ddpfix.patches.torch.pipeline.backward.RUNS": "threads in which a backward runs; empty outside of one",
    "ddpfix.patches.torch.internals.autograd.HIDING": "only ever compared with itself earlier in one backward",
    "ddpfix.patches.transformers.intent._NOTES": "what the user chose, by a handler of accelerate's while it lives",
    "ddpfix.patches.transformers.timeouts._GIVEN": "what the user gave, by a handler of accelerate's while it lives",
    "ddpfix.patches.transformers.overrides._PATHS": "where a class reads its rate: a cache of its source, by class",
    "ddpfix.uneven.async_sum._GROUPS": "groups live as long as the default one, and cannot be destroyed alone",
    "ddpfix.exchange.notices._READERS": "the thread of this rank that reads what other ranks ask",
    "ddpfix.exchange.keys._SESSIONS": "counts of keys in the group's store, which keeps them for its own length",
    "ddpfix.import_hook.RUNNING": "modules that are executed: each takes itself out at its end",
    "ddpfix.trace.writer._WATCHED": "whether Python's hook at forks is set, which cannot be taken back",
}


def test_every_name_at_module_level_that_functions_change_has_a_reason() -> None:
    known = {**OF_ACTIVATION, **OF_PROCESS}
    found = registries.found()
    new = [name for name in found if name not in known]
    assert not new, f"state at module level, which Site.keep or a record could hold: {', '.join(new)}"
    assert sorted(known) == found, "a reason stands here for what is gone"
    assert all(reason for reason in known.values())


@pytest.mark.parametrize(
    "text, expected",
    [
        ("A = []", ["m.A"]),
        ("A = [False]", ["m.A"]),
        ("A = set()\nB: Dict[str, int] = {}", ["m.A", "m.B"]),
        ("A = weakref.WeakKeyDictionary()\nB = Registry('here')", ["m.A", "m.B"]),
        ("A = {'a': 1}\ndef f(): A['b'] = 2", ["m.A"]),
        ("A = {'a': 1}\ndef f(): del A['a']", ["m.A"]),
        ("A = {'a': 1}\ndef f(site): site.at_undo(A.clear)", ["m.A"]),
        ("A = ['a', 'b']\ndef f(site): site.register(A, 1)", ["m.A"]),
        ("A = 0\ndef f():\n    global A\n    A = 1", ["m.A"]),
        ("if True:\n    A = itertools.count()", ["m.A"]),
        ("A = {'a': 1}\nB = ('a',)\nC = ['a', 'b']\n__all__ = ['f']\ndef f(): return A['a']", []),
        ("def f():\n    a = []\n    a.append(1)", []),
    ],
)
def test_it_is_found(text: str, expected: List[str]) -> None:
    assert registries.of_tree(text) == expected
