"""A recipe of four modules that it calls as self.hparams.X: the shape of spoken language understanding and FastSpeech2.

One of them gives two outputs. A search has it and the one behind it, and decodes with them in training too, not equally
often on each rank. Another one is held in a dict, and after the first epoch no longer trained. The optimizer has a list
of all of them. With ``through: modules`` it is the same recipe mended by hand. Run as a script.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Tuple

import torch

from tests.speechbrain import tiny_recipe

SCRIPT = Path(__file__)
PARTS = ("encoder", "decoder", "output", "aside")
YAML = """
output_folder: results
through: hparams
number_of_epochs: 2
grad_accumulation_factor: 1
__set_seed: !apply:torch.manual_seed [7]
encoder: !new:torch.nn.Linear
    in_features: 4
    out_features: 4
decoder: !new:tests.speechbrain.parts_recipe.Decoder
output: !new:torch.nn.Linear
    in_features: 4
    out_features: 2
aside: !new:torch.nn.Linear
    in_features: 4
    out_features: 1
search: !new:tests.speechbrain.parts_recipe.Search
    decoder: !ref <decoder>
    output: !ref <output>
modules:
    encoder: !ref <encoder>
    decoder: !ref <decoder>
    output: !ref <output>
    aside: !ref <aside>
model: !new:torch.nn.ModuleList
    - [!ref <encoder>, !ref <decoder>, !ref <output>, !ref <aside>]
epoch_counter: !new:speechbrain.utils.epoch_loop.EpochCounter
    limit: !ref <number_of_epochs>
"""


class Decoder(torch.nn.Module):
    """Two steps of a cell; what decodes takes one by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.GRUCell(4, 4)

    def forward(self, encoded: Any) -> Tuple[Any, Any]:
        state = self.forward_step(encoded, torch.zeros_like(encoded))
        return self.forward_step(encoded, state), state

    def forward_step(self, encoded: Any, state: Any) -> Any:
        return self.cell(encoded, state)


class Search(torch.nn.Module):
    """Takes steps of the decoder until it has enough of them, which depends on the input."""

    def __init__(self, decoder: Any, output: Any) -> None:
        super().__init__()
        self.decoder = decoder
        self.output = output

    def forward(self, encoded: Any, steps: int) -> Any:
        state, found = torch.zeros_like(encoded), []
        for _ in range(steps):
            with torch.no_grad():
                state = self.decoder.forward_step(encoded, state)
                found.append(self.output(state))
        return found


def main() -> None:
    import speechbrain as sb
    from hyperpyyaml import load_hyperpyyaml

    hparams_file, run_opts, overrides = sb.parse_arguments(sys.argv[1:])
    sb.utils.distributed.ddp_init_group(run_opts)
    with open(hparams_file) as file:
        hparams = load_hyperpyyaml(file, overrides)

    class PartsBrain(sb.Brain):  # type: ignore[misc,name-defined]
        def compute_forward(self, batch: Any, stage: Any) -> Any:
            called = self.hparams if hparams["through"] == "hparams" else self.modules
            aside = self.beside(batch)
            encoded = called.encoder(batch.x)
            hidden, _ = called.decoder(encoded)
            outputs = called.output(hidden)
            if stage != sb.Stage.TRAIN or self.step % 2 == 0:
                self.hparams.search(encoded, 1 + int(batch.id[0]) % 3)
            return outputs, aside

        def beside(self, batch: Any) -> Any:
            held = self.hparams.modules if hparams["through"] == "hparams" else self.modules
            if self.hparams.epoch_counter.current == 1:
                return held["aside"](batch.x)
            held["aside"].eval()
            with torch.no_grad():
                return held["aside"](batch.x)

        def compute_objectives(self, predictions: Any, batch: Any, stage: Any) -> Any:
            outputs, aside = predictions
            return outputs.square().mean() + aside.square().mean()

        def init_optimizers(self) -> None:
            self.optimizer = self.opt_class(self.hparams.model.parameters())
            self.optimizers_dict = {"all": self.optimizer}

    brain = PartsBrain(
        modules=hparams["modules"],
        opt_class=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        hparams=hparams,
        run_opts=run_opts,
    )
    training = tiny_recipe.loader("loader", 4, int(torch.distributed.get_rank()))
    brain.fit(brain.hparams.epoch_counter, training, tiny_recipe.loader("loader", 2, 0))


if __name__ == "__main__":
    main()
