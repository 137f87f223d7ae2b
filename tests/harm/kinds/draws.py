"""Encoders of a user's own that skip layers, and draw other things beside that."""

import pickle
import random

import numpy
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.harm.made import state
from tests.harm.program import program
from tests.support.written import written

# So rare that no layer is ever skipped: plain torch is right without the flag, and has to stay equal.
NEVER = 1e-9
# Where it is imported, encoders of any origin are covered.
PACKAGE = "transformers"
SKIPS = r"skip the same layers|LayerDrop|layers"


class Encoder(nn.Module):
    """Written as many are: a list of layers, a rate, a coin for each layer."""

    def __init__(self, rate=NEVER, layers=4):
        super().__init__()
        self.layerdrop = rate
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(layers))
        self.seen, self.draws = [], random.Random(3)

    def forward(self, x):
        for layer in self.layers:
            if self.training and random.uniform(0, 1) < self.layerdrop:
                continue
            x = x + layer(x).tanh()
        return x


def trained(encoder, rank, steps=12, **how):
    """Train an encoder, made with the same seed on all ranks; each rank has batches of its own."""
    torch.manual_seed(0)
    # The layer in front has a gradient in every step.
    wrapped = DDP(nn.Sequential(nn.Linear(4, 4), encoder(**how)), find_unused_parameters=True)
    seed(rank)
    optimizer, out = torch.optim.SGD(wrapped.parameters(), 0.05), []
    for _ in range(steps):
        result = wrapped(torch.randn(3, 4))
        out.append(result.detach().clone())
        result.pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return out, state(wrapped), wrapped.module[1].seen


def seed(number):
    random.seed(number)
    numpy.random.seed(number)
    torch.manual_seed(number)


FORWARD = """
class {name}(Encoder):
    def forward(self, x):
        truth = x
        {before}
        for index, layer in enumerate(self.layers):
            {inside}
            if self.training and {skips}:
                {noted}
                continue
            x = {given}
        return x
"""


def drawing(name, skips, before="pass", inside="pass", noted="pass", given="x + layer(x).tanh()"):
    words = {"before": before, "inside": inside, "skips": skips, "noted": noted, "given": given}
    return written(name, FORWARD.format(name=name, **words), {**globals(), "pickle": pickle})


Percent = drawing("Percent", "numpy.random.uniform(0, 100) < 100 * self.layerdrop", noted="self.seen.append(index)")
Doubled = drawing(
    "Doubled",
    "draw.item() < 2 * self.layerdrop",
    inside="draw = torch.empty(1).uniform_(0, 2)",
    noted="self.seen.append(index)",
)
COIN = "random.random() < self.layerdrop"
MASK = (
    "width = random.randint(1, 2); first = int(numpy.random.randint(0, 4 - width)); self.seen.append((first, width)); "
    "x = x.clone(); x[:, first : first + width] = 0"
)
RATES = (
    "draws = torch.rand(len(self.layers)); self.seen.append(draws.clone()); "
    "rates = torch.arange(len(self.layers)) * self.layerdrop / len(self.layers)"
)
# By the name of the program.
ENCODERS = {
    "gain_of_uniform": drawing("Gain", COIN, "x = x * random.uniform(0.8, 1.2)"),
    "noise_of_a_whole_tensor": drawing(
        "Noise",
        "torch.rand([]) < self.layerdrop",
        inside="noise = torch.empty(4).uniform_(-0.1, 0.1); self.seen.append(noise)",
        given="x + layer(x + noise)",
    ),
    "augmentation_of_this_rank": drawing("Flip", COIN, "if random.random() < 0.5: x = x.flip(-1); self.seen.append(1)"),
    "draw_as_item": drawing(
        "Item",
        "draw < self.layerdrop",
        inside="draw = torch.rand(()).item(); self.seen.append(type(draw).__name__)",
    ),
    "draw_moved_to_a_device": drawing(
        "Device",
        "draw < self.layerdrop",
        inside="draw = torch.rand(1).to(x.device, x.dtype); self.seen.append(draw.dtype)",
    ),
    "draw_expanded": drawing(
        "Expanded",
        "False",
        inside="keep = (torch.rand(1).expand(3).unsqueeze(-1) >= self.layerdrop).to(x.dtype)",
        given="x + keep * layer(x).tanh()",
    ),
    "draw_in_where": drawing(
        "Where", "False", given="torch.where(torch.rand([]) < self.layerdrop, x, x + layer(x).tanh())"
    ),
    "percents_that_skip_nothing": Percent,
    "draw_logged_and_pickled": drawing(
        "Logged",
        "draw < self.layerdrop",
        inside="draw = numpy.random.uniform(0, 1); "
        "self.seen.append((f'{draw:.3f}', round(draw, 2), isinstance(draw, float), pickle.dumps(draw)))",
    ),
    "generator_of_its_own": drawing(
        "Dice", "self.draws.random() < self.layerdrop", given="x + layer(x * self.draws.gauss(1, 0.1)).tanh()"
    ),
    "mask_of_spec_augment": drawing("Masked", "numpy.random.uniform(0, 1) < self.layerdrop", MASK),
    # One draw serves the layer and the size of its noise.
    "draw_used_twice": drawing(
        "Mixed", "draw < self.layerdrop", inside="draw = random.random()", given="x + layer(x).tanh() * (0.5 + draw)"
    ),
    # Rates that grow with depth, drawn at once.
    "all_draws_at_once": drawing("Threshold", "bool(draws[index] < rates[index])", RATES),
    # The same comparison, another purpose.
    "scheduled_sampling": drawing(
        "Teacher", COIN, inside="if random.random() < 0.3: x = 0.5 * truth + 0.5 * x; self.seen.append(1)"
    ),
}


def named(name, encoder):
    """Make a program of an encoder that is trained."""

    def run(rank, size):
        return trained(encoder, rank)

    run.__name__ = name
    return program(needs=PACKAGE, may=(SKIPS,), sample=name == "gain_of_uniform")(run)


globals().update({name: named(name, encoder) for name, encoder in ENCODERS.items()})


def fifth(encoder, rank):
    """Return whether about a fifth of 500 layers is skipped: which ones may be shared, how often is as it was."""
    skipped = len(trained(encoder, rank, steps=100, rate=0.2, layers=5)[2])
    seed(0)
    return 60 < skipped < 140


@program(needs=PACKAGE, due=(SKIPS,))
def other_bounds_skip_a_fifth(rank, size):
    return fifth(Percent, rank), fifth(Doubled, rank)


@program(ranks=1, needs=PACKAGE, may=(SKIPS,))
def one_rank_skips_as_ever(rank, size):
    return trained(Percent, rank, steps=20, rate=0.3)
