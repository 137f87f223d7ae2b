"""Encoders of a user's own that skip layers, and draw other things beside that."""

import pickle
import random

import numpy
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.harm.made import state
from tests.harm.program import program

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
        self.seen = []

    def forward(self, x):
        for layer in self.layers:
            if self.training and random.uniform(0, 1) < self.layerdrop:
                continue
            x = x + layer(x).tanh()
        return x


def trained(encoder, rank, steps=6, **how):
    """Train an encoder, made with the same seed on all ranks; each rank has batches of its own."""
    torch.manual_seed(0)
    # The layer in front has a gradient in every step.
    wrapped = DDP(nn.Sequential(nn.Linear(4, 4), encoder(**how)), find_unused_parameters=True)
    random.seed(rank)
    numpy.random.seed(rank)
    torch.manual_seed(rank)
    optimizer, out = torch.optim.SGD(wrapped.parameters(), 0.05), []
    for _ in range(steps):
        result = wrapped(torch.randn(3, 4))
        out.append(result.detach().clone())
        result.pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return out, state(wrapped), wrapped.module[1].seen


def drawn(name, steps=6, **about):
    """Make a program of an encoder that is trained."""

    def marked(encoder):
        def run(rank, size):
            return trained(encoder, rank, steps)

        run.__name__ = name
        globals()[name] = program(needs=PACKAGE, may=(SKIPS,), **about)(run)
        return encoder

    return marked


@drawn("gain_of_uniform", sample=True)
class Gain(Encoder):
    def forward(self, x):
        x = x * random.uniform(0.8, 1.2)
        for layer in self.layers:
            if self.training and random.uniform(0, 1) < self.layerdrop:
                continue
            x = x + layer(x).tanh()
        return x


@drawn("noise_of_a_whole_tensor")
class Noise(Encoder):
    def forward(self, x):
        for layer in self.layers:
            noise = torch.empty(4).uniform_(-0.1, 0.1)
            self.seen.append(noise)
            if self.training and torch.rand([]) < self.layerdrop:
                continue
            x = x + layer(x + noise)
        return x


@drawn("augmentation_of_this_rank", steps=12)
class Coin(Encoder):
    def forward(self, x):
        if self.training and random.random() < 0.5:
            x = x.flip(-1)
            self.seen.append("flipped")
        for layer in self.layers:
            if self.training and random.random() < self.layerdrop:
                continue
            x = x + layer(x).tanh()
        return x


@drawn("draw_as_item")
class Item(Encoder):
    def forward(self, x):
        for layer in self.layers:
            draw = torch.rand(()).item()
            self.seen.append(type(draw).__name__)
            if self.training and draw < self.layerdrop:
                continue
            x = x + layer(x).tanh()
        return x


@drawn("draw_moved_to_a_device")
class Device(Encoder):
    def forward(self, x):
        for layer in self.layers:
            draw = torch.rand(1).to(x.device, x.dtype)
            self.seen.append(draw.dtype)
            if self.training and draw < self.layerdrop:
                continue
            x = x + layer(x).tanh()
        return x


@drawn("draw_expanded")
class Expanded(Encoder):
    def forward(self, x):
        for layer in self.layers:
            draw = torch.rand(1).expand(3).unsqueeze(-1)
            keep = (draw >= self.layerdrop).to(x.dtype)
            x = x + keep * layer(x).tanh()
        return x


@drawn("draw_in_where")
class Where(Encoder):
    def forward(self, x):
        for layer in self.layers:
            x = torch.where(torch.rand([]) < self.layerdrop, x, x + layer(x).tanh())
        return x


@drawn("percents_that_skip_nothing")
class Percent(Encoder):
    def forward(self, x):
        for index, layer in enumerate(self.layers):
            if self.training and numpy.random.uniform(0, 100) < 100 * self.layerdrop:
                self.seen.append(index)
                continue
            x = x + layer(x).tanh()
        return x


@program(needs=PACKAGE, due=(SKIPS,))
def percents_skip_a_fifth(rank, size):
    skipped = len(trained(Percent, rank, steps=100, rate=0.2, layers=5)[2])
    # Which ones is shared; how often is as it was: 500 draws.
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    return 60 < skipped < 140


class Uniform(Encoder):
    def forward(self, x):
        for index, layer in enumerate(self.layers):
            draw = torch.empty(1).uniform_(0, 2)
            if self.training and draw.item() < 2 * self.layerdrop:
                self.seen.append(index)
                continue
            x = x + layer(x).tanh()
        return x


@program(needs=PACKAGE, may=(SKIPS,))
def scale_of_two_skips_a_fifth(rank, size):
    skipped = len(trained(Uniform, rank, steps=100, rate=0.2, layers=5)[2])
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    return 60 < skipped < 140


@drawn("draw_logged_and_pickled")
class Logged(Encoder):
    def forward(self, x):
        for layer in self.layers:
            draw = numpy.random.uniform(0, 1)
            self.seen.append((f"{draw:.3f}", round(draw, 2), isinstance(draw, float), pickle.dumps(draw)))
            if self.training and draw < self.layerdrop:
                continue
            x = x + layer(x).tanh()
        return x


@drawn("generator_of_its_own")
class Generator(Encoder):
    def __init__(self, **how):
        super().__init__(**how)
        self.draws = random.Random(3)

    def forward(self, x):
        for layer in self.layers:
            if self.training and self.draws.random() < self.layerdrop:
                continue
            x = x + layer(x * self.draws.gauss(1, 0.1)).tanh()
        return x


@drawn("mask_of_spec_augment")
class MaskedTime(Encoder):
    """SpecAugment: where a mask begins, and how wide it is."""

    def forward(self, x):
        width = random.randint(1, 2)
        first = int(numpy.random.randint(0, 4 - width))
        self.seen.append((first, width))
        x = x.clone()
        x[:, first : first + width] = 0
        for layer in self.layers:
            if self.training and numpy.random.uniform(0, 1) < self.layerdrop:
                continue
            x = x + layer(x).tanh()
        return x


@drawn("draw_used_twice")
class Mixed(Encoder):
    """One draw serves the layer and the size of its noise."""

    def forward(self, x):
        for layer in self.layers:
            draw = random.random()
            if self.training and draw < self.layerdrop:
                continue
            x = x + layer(x).tanh() * (0.5 + draw)
        return x


@drawn("all_draws_at_once")
class Threshold(Encoder):
    """Rates that grow with depth, drawn at once."""

    def forward(self, x):
        draws = torch.rand(len(self.layers))
        rates = torch.arange(len(self.layers)) * self.layerdrop / len(self.layers)
        self.seen.append(draws.clone())
        for draw, rate, layer in zip(draws, rates, self.layers):
            if self.training and bool(draw < rate):
                continue
            x = x + layer(x).tanh()
        return x


@drawn("scheduled_sampling")
class Teacher(Encoder):
    """Scheduled sampling next to LayerDrop: the same comparison, another purpose."""

    def forward(self, x):
        truth = x
        for layer in self.layers:
            if random.random() < 0.3:
                x = 0.5 * truth + 0.5 * x
                self.seen.append(1)
            if self.training and random.random() < self.layerdrop:
                continue
            x = x + layer(x).tanh()
        return x


@program(ranks=1, needs=PACKAGE, may=(SKIPS,))
def one_rank_skips_as_ever(rank, size):
    return trained(Percent, rank, steps=20, rate=0.3)
