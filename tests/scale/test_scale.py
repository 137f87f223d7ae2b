"""What a rank asks of the store does not grow with the number of ranks: agreement, hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpfix.exchange.keys import absent, read
from ddpfix.exchange.rendezvous import AgreementError
from tests.scale import parts

SMALL, MIDDLE, LARGE = 2, 64, 512
LONG = pytest.mark.sampled(inside=False, cells=True)


def measured(size: int, act: str, **more: object) -> parts.Part:
    """One part in a world of its own, whose ranks have met."""
    world = parts.World(size)
    with world.up():
        if act == "agree":
            return parts.agree(world, **more)  # type: ignore[arg-type]
        parts.agree(world)
        part: parts.Part = getattr(parts, act)(world, **more)
        return part


def digits(size: int, messages: int) -> int:
    """Bytes by which keys and values grow because the numbers of ranks are longer: two of them in a message."""
    return 2 * messages * (len(str(size - 1)) - 1)


@LONG
def test_what_a_rank_sends_to_agree_is_the_same_for_two_and_for_hundreds() -> None:
    messages = 9
    found = {size: measured(size, "agree") for size in (SMALL, MIDDLE, LARGE)}
    small = max(found[SMALL].first["bytes"], found[SMALL].others["bytes"])
    for size, part in found.items():
        assert len(set(map(str, part.answers))) == 1 and not isinstance(part.answers[0], Exception)
        assert part.first["messages"] <= messages and part.others["messages"] <= messages, (size, part)
        most = max(part.first["bytes"], part.others["bytes"])
        # Whoever comes last says one thing more.
        assert most <= 1.15 * small + digits(size, messages), (size, part)


@LONG
def test_a_hang_costs_the_one_that_judges_three_messages_for_64_ranks(tmp_path: Path) -> None:
    found = {size: measured(size, "watch", limit=2.0, folder=str(tmp_path)) for size in (SMALL, MIDDLE, LARGE)}
    for size, part in found.items():
        told = {answer.found.text for answer in part.answers}
        assert len(told) == 1 and "no rank is missing" in told.pop(), part.answers[0]
        # Another alarm may be raised while ranks answer the first one.
        assert part.others["messages"] <= 20, (size, part.others)
        assert part.others["bytes"] <= 1.5 * found[SMALL].others["bytes"] + digits(size, 20), (size, part.others)
        assert part.first["messages"] <= 24 + 4 * (size // 64 + 1), (size, part.first)


@LONG
def test_without_the_lowest_ranks_the_others_do_not_ask_for_each(tmp_path: Path) -> None:
    """They were looked for one by one, by each rank above them."""
    part = measured(96, "watch", limit=2.0, absent=48, folder=str(tmp_path))
    told = {answer.found.text for answer in part.answers}
    assert len(told) == 1 and "rank 0 does not answer" in told.pop(), part.answers
    # The lowest one that is there reads what each absent rank has left; each of the rest asked for 48 keys.
    assert part.usual <= 20 and part.others["messages"] <= 20 + 8 * 48, part


@LONG
def test_a_rank_without_ddpfix_and_one_that_differs_are_named_among_many() -> None:
    part = measured(128, "agree", limit=2.0, without=1)
    assert all(isinstance(answer, AgreementError) and "not on rank 127" in str(answer) for answer in part.answers)
    # Once each for 64 ranks, and for those of the 64 in which one lacks.
    assert part.first["messages"] <= 2 * 64 + 24 and part.others["messages"] <= 12, part
    part = measured(128, "agree", differs=100)
    assert all("On rank 100 LayerDrop is 'off'" in str(answer) for answer in part.answers)


def test_many_keys_are_looked_at_together() -> None:
    world = parts.World(1)
    store, names = world.stores[0], [f"key {number}" for number in range(200)]
    there = names[:130] + names[131:]
    for name in there:
        store.set(name, name)
    world.counts[0].clear()
    assert absent(store, names) == ["key 130"]
    assert [bytes(value).decode() for value in read(store, there)] == there
    assert world.counts[0]["messages"] <= 4 + 64 + 4
