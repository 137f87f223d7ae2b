"""What the README's test command leaves to ``nox -s later``, so that it takes minutes: ``pytest -m "not later"``.

A key is a file of tests, or ``file::function``, which goes before its file. The value is how many share one: of 4 every
fourth test is run by the README's command, the first one among them; of 0 none. No kind of promise is left out whole:
what stands for it is another test, or the first one.
"""

from __future__ import annotations

from collections import Counter
from typing import Dict, Iterable, Iterator, Tuple

LATER: Dict[str, int] = {
    # The law: programs of each kind and loops of each theme stay.
    "harm/test_harm": 5,
    "harm/loops/test_loops": 0,
    "late/loops/test_loops::test_plain_torch_does_what_is_declared": 36,
    "late/loops/test_loops::test_ddpfix_keeps_the_law": 9,
    "late/test_manual": 0,
    "late/test_scenarios": 0,
    "late/test_backward_check": 0,
    "late/test_threads": 0,
    # Ways to switch on: one of each stays, and torchrun with the real torch.
    "activation/test_same_world": 6,
    "activation/test_untested": 0,
    "activation/test_untested::test_a_newer_torch_whose_places_are_unchanged_trains_the_same": 1,
    "activation/test_faults::test_the_program_runs_as_without_us": 3,
    "activation/test_introspection": 0,
    "activation/test_children": 0,
    "launchers/test_lines": 0,
    "packaging/test_wheel::test_install_use_and_uninstall": 0,
    "packaging/test_wheel::test_an_editable_install_use_and_uninstall": 0,
    "packaging/test_wheel::test_the_checkout_without_any_install": 0,
    "packaging/test_odd_machines": 0,
    "wenet/test_launch::test_a_recipe_with_one_process_a_gpu": 0,
    # What is said: one test of each kind stays.
    "late/test_divergence": 0,
    "late/test_divergence::test_every_rank_says_which_one_differs": 7,
    "late/test_divergence::test_nothing_is_said_of_replicas_that_are_right": 40,
    "late/test_divergence::test_switched_off_nothing_is_compared": 3,
    "late/test_symptoms": 0,
    "late/test_symptoms::test_each_row_has_its_test": 1,
    "ranks/test_apart": 0,
    "ranks/test_apart::test_a_short_run_that_was_never_averaged_hears_of_it_at_its_end": 1,
    "ranks/test_connecting": 0,
    "ranks/test_ranks": 0,
    "ranks/test_ranks::test_unpatched_it_fails": 1,
    "ranks/test_ranks::test_explicit_false_through_accelerate_and_trainer": 1,
    "ranks/test_ranks::test_ranks_that_differ_are_named_with_the_difference": 1,
    "ranks/test_ranks::test_switched_off_patches_change_nothing": 1,
    "ranks/test_time_limits": 0,
    # What it costs, and what no user meets.
    "adding/test_page": 0,
    "late/test_pipeline": 0,
    "late/test_slow_store": 0,
    "late/test_reads": 0,
    # Layers in step stay in tests/wenet, tests/unit/test_gate.py and the programs of tests/harm that draw.
    "layerdrop/test_compile": 0,
    "layerdrop/test_families": 3,
    "layerdrop/test_recompute": 2,
    "skipping/test_shapes": 0,
    "unit/test_gate::test_a_process_that_has_no_group_imports_no_patch_of_ddp": 0,
    "wenet/test_overrides::test_unpatched_takes_every_word_for_true": 0,
    "wenet/test_overrides::test_words_mean_what_they_say": 0,
    "wenet/test_imports": 0,
}


def later(tests: Iterable[Tuple[str, str]]) -> Iterator[bool]:
    """Yield of each test whether it is left out.

    Args:
        tests: the file, below tests/ and without its suffix, and the function of each, in the order of collection.
    """
    seen: Dict[str, int] = Counter()
    for file, function in tests:
        key = f"{file}::{function}" if f"{file}::{function}" in LATER else file
        share = LATER.get(key, 1)
        yield not share or seen[key] % share != 0
        seen[key] += 1
