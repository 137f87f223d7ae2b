"""Process groups of the user's own."""

from __future__ import annotations

import datetime
import os
from typing import Any, List

from torch import distributed

from tests.late.loops.kinds import UNFINISHED, kind
from tests.late.loops.loop import Loop
from tests.late.loops.tiny_model import Apart, Blocks, loss, mlp, uneven, usual
from tests.support.ranks import free_port


@kind(plain="error", plain_cause=UNFINISHED, three=True)
def group_of_some(loop: Loop) -> None:
    """The first ranks but one train a model that leaves blocks out, the last rank trains another one alone."""
    groups = [distributed.new_group(list(range(loop.size - 1))), distributed.new_group([loop.size - 1])]
    group = groups[loop.rank == loop.size - 1]
    usual(loop, loop.wrap(Blocks(), process_group=group))


@kind(plain="error", plain_cause=UNFINISHED)
def two_groups(loop: Loop) -> None:
    """Two models over two groups of the same ranks are trained in one step, and leave blocks out."""
    ranks = list(range(loop.size))
    models = [loop.wrap(Blocks(), process_group=distributed.new_group(ranks)) for _ in range(2)]
    for step in loop.trained(*models):
        for number, model in enumerate(models):
            loss(model(loop.batch(step), uneven(loop.rank, step + number))).backward()


@kind()
def two_models_interleaved(loop: Loop) -> None:
    """Forwards of two models, then their losses in turn, two outputs each."""
    models = [loop.wrap(Apart(2)) for _ in range(2)]
    for step in loop.trained(*models):
        outputs = [model(loop.batch(step)) for model in models]
        for turn in range(2):
            for output in outputs:
                loss(output[turn]).backward()


@kind()
def one_model_feeds_another(loop: Loop) -> None:
    """Two wrapped models in a row, one backward; the second is called with two pieces of the first one's output."""
    one, other = loop.wrap(mlp()), loop.wrap(mlp())
    for step in loop.trained(one, other):
        pieces = one(loop.batch(step)).chunk(2)
        sum(loss(other(piece)) for piece in pieces).backward()


@kind(plain="error", plain_cause=UNFINISHED, three=True)
def one_model_feeds_another_skipping(loop: Loop) -> None:
    """The same with blocks left out in both models."""
    one, other = loop.wrap(Blocks()), loop.wrap(Blocks())
    for step in loop.trained(one, other):
        output = one(loop.batch(step), uneven(loop.rank, step))
        loss(other(output, uneven(loop.rank, step + 1))).backward()


def _agreed_port(loop: Loop) -> int:
    ports: List[Any] = [None]
    if loop.rank == 0:
        ports = [free_port()]
    distributed.broadcast_object_list(ports, 0)
    return int(ports[0])


def _made_again(loop: Loop, skip: bool) -> None:
    module = Blocks()
    for turn in range(2):
        model = loop.wrap(module)
        for step in loop.trained(model, count=2):
            loss(model(loop.batch(step, turn), uneven(loop.rank, step) if skip else ())).backward()
        if turn == 0:
            del model
            port = _agreed_port(loop)
            distributed.barrier()
            distributed.destroy_process_group()
            loop.rank = loop.size - 1 - loop.rank
            os.environ.update(MASTER_PORT=str(port), RANK=str(loop.rank))
            distributed.init_process_group(
                "gloo", rank=loop.rank, world_size=loop.size, timeout=datetime.timedelta(seconds=6)
            )


@kind(counted=False, three=True, needs=("2.1",))
def group_made_again(loop: Loop) -> None:
    """The group is made again, with other ranks (in plain torch 2.0 a rank may hang in destroy_process_group)."""
    _made_again(loop, False)


@kind(plain="error", plain_cause=UNFINISHED, three=True, needs=("2.1",))
def group_made_again_skipping(loop: Loop) -> None:
    """The same with blocks left out."""
    _made_again(loop, True)


@kind(plain="error", plain_cause=UNFINISHED, needs=("torch.distributed.device_mesh.init_device_mesh", "2.3"))
def device_mesh_skipping(loop: Loop) -> None:
    """A mesh of devices instead of a group, blocks are left out."""
    from torch.distributed.device_mesh import init_device_mesh

    usual(loop, loop.wrap(Blocks(), device_mesh=init_device_mesh("cpu", (loop.size,))))


@kind(plain="error", plain_cause=UNFINISHED)
def experts_in_a_group_of_their_own(loop: Loop) -> None:
    """Experts are wrapped in groups of one rank, the trunk in one of all; an expert is left out in some steps."""
    alone = [distributed.new_group([rank]) for rank in range(loop.size)]
    trunk, experts = loop.wrap(mlp()), loop.wrap(Apart(2), process_group=alone[loop.rank])
    for step in loop.trained(trunk, experts):
        (output,) = experts(trunk(loop.batch(step)), [(step + loop.rank) % 2])
        loss(output).backward()
