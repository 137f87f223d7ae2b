"""Jobs that plain torch runs to their end: one rank waits for long, and nobody is missing."""

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from tests.harm.made import fit, fitted, net, state
from tests.harm.program import program, script

LATE = 27


def one(value):
    return torch.full((4,), float(value))


@program(ranks=3, slow=True)
def master_receives_from_workers(rank, size):
    if rank:
        time.sleep(LATE if rank == 2 else 0)
        dist.send(one(rank), 0)
        return rank
    boxes = [one(0), one(0)]
    for source in (1, 2):
        dist.recv(boxes[source - 1], source)
    return boxes


@program(ranks=3, slow=True)
def pipeline_whose_first_stage_is_done(rank, size):
    box = one(rank)
    for step in range(4):
        if rank:
            dist.recv(box, rank - 1)
        if rank == 1 and step == 3:
            time.sleep(LATE)
        if rank < size - 1:
            dist.send(box + 1, rank + 1)
    return box


@program(slow=True)
def point_to_point_after_training(rank, size):
    wrapped = fitted(rank)
    box = one(0)
    if rank:
        dist.send(one(1), 0)
        time.sleep(LATE)
        dist.send(one(2), 0)
    else:
        dist.recv(box, 1)
        dist.recv(box, 1)
    return box, state(wrapped)


@program(ranks=3, slow=True)
def group_of_two_while_the_third_is_done(rank, size):
    """An async broadcast that is never waited for, then a late peer in a group of two."""
    pair = dist.new_group([0, 2])
    box = one(rank)
    if rank == 0:
        dist.broadcast(one(7), src=0, async_op=True)
    if rank == 1:
        return box
    if rank == 2:
        time.sleep(LATE)
    dist.all_reduce(box, group=pair)
    return box


@program(ranks=3, slow=True)
def rank_that_leaves_and_works_on(rank, size):
    box = one(rank)
    dist.all_reduce(box)
    if rank == 2:
        dist.destroy_process_group()
        time.sleep(LATE + 2)
        return box
    if rank == 1:
        time.sleep(LATE)
        dist.send(box, 0)
    else:
        dist.recv(box, 1)
    return box


@program(slow=True)
def monitored_barrier_with_patience(rank, size):
    if rank:
        time.sleep(LATE)
    dist.monitored_barrier(timeout=timedelta(seconds=60))
    return rank


@program(ranks=3, slow=True)
def queue_in_the_store(rank, size):
    """Two workers take numbers from a queue until it is empty; the master waits for what they say."""
    store = dist.distributed_c10d._get_default_store()
    mine = dist.PrefixStore("queue", store)
    if rank == 0:
        mine.wait(["done1", "done2"], timedelta(seconds=60))
        return sorted([mine.get("done1"), mine.get("done2")])
    taken = []
    while (number := mine.add("next", 1)) <= 6:
        taken.append(number)
        time.sleep(5 if rank == 1 else 6)
    mine.set(f"done{rank}", "yes")
    return None


@program(ranks=3, slow=True)
def long_evaluation_on_one_rank(rank, size):
    wrapped = fitted(rank)
    if rank == 0:
        time.sleep(LATE)
    dist.barrier()
    return state(wrapped)


@program(slow=True)
def thread_pool_on_the_first_rank(rank, size):
    def receive():
        box = one(0)
        dist.recv(box, 1)
        return box

    if rank:
        time.sleep(LATE)
        dist.send(one(3), 0)
        return None
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(receive).result()


class Kept(contextlib.AbstractContextManager):
    """Remembers an error, and lets the program go on."""

    def __init__(self):
        self.failure = None

    def __exit__(self, kind, value, trace):
        self.failure = kind
        return kind is not None and issubclass(kind, RuntimeError)


def peer_ends_early(rank):
    """Rank 1's program is over, a thread uploads; rank 0's collective fails once rank 1's process has ended."""
    if rank == 1:
        threading.Thread(target=time.sleep, args=(LATE + 4,)).start()
        raise SystemExit(0)


def context_manager(reduced):
    kept = Kept()
    with kept:
        reduced()
    return kept.failure


def exit_stack(reduced):
    failures = []
    with contextlib.ExitStack() as stack:
        stack.push(lambda kind, value, trace: failures.append(kind) or kind is not None)
        reduced()
    return failures[0]


def try_two_frames_up(reduced):
    def middle():
        reduced()

    try:
        middle()
    except RuntimeError as failure:
        return type(failure)
    return None


def asyncio_gather(reduced):
    async def one_of_two():
        reduced()

    async def both():
        return await asyncio.gather(one_of_two(), asyncio.sleep(0.1, "slept"), return_exceptions=True)

    return type(asyncio.run(both())[0])


def future(reduced):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return type(pool.submit(reduced).exception())


def dealing(deals):
    """Make a program that deals with the error of a collective, and trains on."""

    def run(rank, size):
        peer_ends_early(rank)
        return str(deals(lambda: dist.all_reduce(one(rank)))), fit(net(), rank)

    run.__name__ = f"{deals.__name__}_deals_with_it"
    return program(slow=True, may=("rank 1 .*",))(run)


WAYS = (context_manager, exit_stack, try_two_frames_up, asyncio_gather, future)
globals().update({f"{deals.__name__}_deals_with_it": dealing(deals) for deals in WAYS})


for each in ("excepthook_saves", "atexit_saves", "unittest_goes_on", "console_goes_on"):
    codes = (1, 0) if each.endswith("saves") else ()
    script("ended", "peer_is_gone", variant=each, arguments=(each,), slow=True, codes=codes, may=("rank 1 .*",))
for each, about in {
    "watchdog_saves": {"may": ("rank 1 .*",)},
    "thread_trains_after_main": {},
    "upload_before_the_barrier": {},
    "signal_handler_waits": {},
    "workers_of_torchrun": {"launcher": "torchrun", "ranks": 3},
}.items():
    script("ended", "a_rank_is_late", variant=each, arguments=(each,), slow=True, **about)
