"""What is kept at the level of modules, and why: everything else belongs to an activation, or to a model's record.

A new name fails here until somebody gives a reason. What several functions, targets or patches of one activation share
is an object of theirs (``Site.keep``), and what is known of a model under DDP is in its ``Wrapped``.
"""

from __future__ import annotations

from typing import Dict, List

import pytest

from tests.support import registries

_REGISTERED = "one list of hooks for one place; Site.register puts in, and undo takes out"

# Emptied by undo: tests/ranks/test_left_over.py.
OF_ACTIVATION: Dict[str, str] = {
    "ddpfix.engine._engine": "the activation itself",
    "ddpfix.import_hook._finder": "the hook in sys.meta_path, which has to be one",
    "ddpfix.layerdrop.shared_skips.EXTENSIONS": _REGISTERED,
    "ddpfix.layerdrop.cover.COVERED": "the record of each class that is covered, found by a module's class",
    "ddpfix.layerdrop.training.TRAINED": "seeds and calls, for autograd and a public function, which know no site",
    "ddpfix.log.NOTED": "lines, notes and listeners of the log, which knows no site",
    "ddpfix.patches.torch.pipeline.model.MODELS": "the records of all models, by wrapper: the place of their state",
    "ddpfix.patches.torch.pipeline.ddp._STAGES": "the pipeline; copies of models find it without a site",
    "ddpfix.patches.torch.unused.states._ALL": "models, for hooks at optimizer steps; undo empties it",
    "ddpfix.patching.layers.CHANGES": "the changes of all sites in their order: they may lie on one another",
    "ddpfix.exchange.lowest_rank._PENDING": "lines that wait some seconds for a lower rank: each takes itself out",
    "ddpfix.monitor.exit.last_words._PRINTED": "the error for which hydra ends the program, which is one",
    "ddpfix.models.wrap_hooks.HOOKS": _REGISTERED,
}
# They outlive an activation, and the next one may see them.
OF_PROCESS: Dict[str, str] = {
    "ddpfix._switch._reported": "a wrong value of DDPFIX is told once a process, before there is an activation",
    "ddpfix.patches.torch.internals.autograd.ENGINE": "what runs in the process's autograd, which is one",
    "ddpfix.patches.transformers.intent.GIVEN": "what the user gave a handler of accelerate's, while it lives",
    "ddpfix.uneven.async_sum._GROUPS": "groups live as long as the default one, and cannot be destroyed alone",
    "ddpfix.exchange.proposals._READERS": "the thread of this rank that reads what other ranks ask",
    "ddpfix.exchange.keys._SESSIONS": "counts of keys in the group's store, which keeps them for its own length",
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
        ("A = []", ["A"]),
        ("A = [False]", ["A"]),
        ("A = set()\nB: Dict[str, int] = {}", ["A", "B"]),
        ("A = weakref.WeakKeyDictionary()\nB = Registry('here')", ["A", "B"]),
        ("A = {'a': 1}\ndef f(): A['b'] = 2", ["A"]),
        ("A = {'a': 1}\ndef f(): del A['a']", ["A"]),
        ("A = {'a': 1}\ndef f(site): site.at_undo(A.clear)", ["A"]),
        ("A = ['a', 'b']\ndef f(site): site.register(A, 1)", ["A"]),
        ("A = 0\ndef f():\n    global A\n    A = 1", ["A"]),
        ("if True:\n    A = itertools.count()", ["A"]),
        ("A = {'a': 1}\nB = ('a',)\nC = ['a', 'b']\n__all__ = ['f']\ndef f(): return A['a']", []),
        ("def f():\n    a = []\n    a.append(1)", []),
    ],
)
def test_it_is_found(text: str, expected: List[str]) -> None:
    assert registries.of_tree(text) == expected
