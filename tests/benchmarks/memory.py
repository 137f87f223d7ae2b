"""What FunASR's batches need of memory over one epoch, stock and under ddpfix: ``python -m tests.benchmarks.memory``.

A synthetic corpus with a long tail (2 to 40 s) goes through the samplers of the FunASR release that is installed; each
batch that a sampler gives goes through a small Paraformer, with random features of the batch's shape. Counted are
the padded frames, rows times squared length, and the bytes that autograd saves for the backward pass
(``torch.autograd.graph.saved_tensors_hooks``, each storage once); on a GPU the peak of allocated and reserved memory
too. Writes docs/memory.md and, where matplotlib is installed (extra ``plot``), docs/memory.svg.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Sequence

FOLDER = Path(__file__).parents[2] / "docs"
UTTERANCES = 400
BATCH_SIZE = 8000
LONGEST = 2048
# Frames of 10 ms that the frontend joins into one.
LFR = 6
CASES: Dict[str, Dict[str, Any]] = {
    "sorted": {"title": "token batches, sort_size=1024", "batch_sampler": "BatchSampler", "sort_size": 1024},
    "espnet": {"title": "EspnetStyleBatchSampler", "batch_sampler": "EspnetStyleBatchSampler", "batch_type": "length"},
    "tokens": {"title": "token batches", "batch_sampler": "BatchSampler"},
}


class Corpus:
    """Lengths only, in frames of 10 ms, as a jsonl says them: most are short, a few are up to 40 s."""

    def __init__(self, count: int, seed: int = 0) -> None:
        draw = random.Random(seed)
        self.frames = [int(100 * min(40.0, 2.0 + draw.expovariate(1 / 5.0))) for _ in range(count)]

    def __len__(self) -> int:
        return len(self.frames)

    def get_source_len(self, index: int) -> int:
        return self.frames[index]

    def get_target_len(self, index: int) -> int:
        return self.frames[index] // 50


def batches(case: str, corpus: Corpus) -> List[List[int]]:
    """One epoch of what the release's sampler gives one process; none where it has no such sampler."""
    from funasr.register import tables

    conf = {"batch_type": "token", **CASES[case], "batch_size": BATCH_SIZE, "max_token_length": LONGEST}
    build = tables.batch_sampler_classes.get(conf.pop("batch_sampler"))
    if build is None:
        return []
    sampler = build(corpus, **conf, is_training=True)["batch_sampler"]
    sampler.set_epoch(1)
    return [list(batch) for batch in sampler]


class Saved:
    """Bytes that autograd keeps: what is saved several times, or is a view of another, counts once."""

    def __init__(self, model: Any) -> None:
        import torch

        self.known = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        self.bytes = 0
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda tensor: tensor)

    def pack(self, tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.known:
            self.known.add(storage.data_ptr())
            self.bytes += storage.nbytes()
        return tensor


def _model(device: str) -> Any:
    from tests.funasr import tiny_model

    return tiny_model.build("Paraformer", encoder_conf={"num_blocks": 2}).to(device).train()


def _batch(corpus: Corpus, batch: Sequence[int], device: str) -> Dict[str, Any]:
    """Random features and texts in the shape that these samples would have after the frontend."""
    import torch

    speech = torch.tensor([-(-corpus.frames[index] // LFR) for index in batch])
    words = torch.tensor([max(2, corpus.get_target_len(index)) for index in batch])
    text = torch.full((len(batch), int(words.max())), -1)
    for row, count in zip(text, words):
        row[: int(count)] = torch.randint(3, 29, (int(count),))
    found = {
        "speech": torch.randn(len(batch), int(speech.max()), 560),
        "speech_lengths": speech,
        "text": text,
        "text_lengths": words,
    }
    return {name: value.to(device) for name, value in found.items()}


def step(model: Any, corpus: Corpus, batch: Sequence[int], device: str) -> Dict[str, float]:
    """One training step; returns what it needed."""
    import torch

    longest = max(corpus.frames[index] for index in batch)
    rows = len(batch)
    found = {"rows": rows, "seconds": longest / 100, "frames": rows * longest, "area": rows * longest**2}
    cuda = device.startswith("cuda")
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    saved = Saved(model)
    torch.manual_seed(0)
    with saved.hooks:
        loss = model(**_batch(corpus, batch, device))[0]
    found["saved"] = saved.bytes
    if cuda:
        # What is saved is known after the forward pass; only the allocator has more to tell.
        loss.backward()
        model.zero_grad(set_to_none=True)
        found["allocated"], found["reserved"] = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return found


def measure(case: str, device: str) -> List[Dict[str, float]]:
    """One epoch of one case in this process. A batch without samples, with which the model cannot be called, is {}."""
    corpus = Corpus(UTTERANCES)
    model = _model(device)
    return [step(model, corpus, batch, device) if batch else {} for batch in batches(case, corpus)]


def child(device: str) -> None:
    """All cases in this process, as JSON on the last line."""
    import funasr  # noqa: F401

    print(json.dumps({case: measure(case, device) for case in CASES}))


def both(device: str) -> Dict[str, Dict[str, List[Dict[str, float]]]]:
    """Stock and patched, in a process of its own each: {case: {"stock" | "ddpfix": steps}}."""
    import os

    found: Dict[str, Dict[str, List[Dict[str, float]]]] = {case: {} for case in CASES}
    for name in ("stock", "ddpfix"):
        environ = {**os.environ, "DDPFIX": "1" if name == "ddpfix" else "0", "OMP_NUM_THREADS": "2"}
        command = [sys.executable]
        command += ["-m", "ddpfix", "run", "-m"] if name == "ddpfix" else ["-m"]
        command += ["tests.benchmarks.memory", "--child", "--device", device]
        done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, check=True, text=True)
        for case, steps in json.loads(done.stdout.splitlines()[-1]).items():
            found[case][name] = steps
    return found


def _halves(steps: Sequence[Dict[str, float]]) -> str:
    """The mean length of the longest utterance in each quarter of the epoch: it climbs, or it does not."""
    full = [each for each in steps if each]
    quarter = max(1, len(full) // 4)
    parts = [full[start : start + quarter] for start in range(0, quarter * 4, quarter)]
    return ", ".join(f"{sum(each['seconds'] for each in part) / len(part):.1f}" for part in parts if part)


def _grown(steps: Sequence[Dict[str, float]], what: str) -> str:
    """How much the largest need grows after the first tenth of the epoch."""
    values = [each[what] for each in steps if each]
    tenth = max(1, len(values) // 10)
    return f"{max(values) / max(values[:tenth]):.2f}"


def table(found: Dict[str, Dict[str, List[Dict[str, float]]]], version: str) -> str:
    """docs/memory.md."""
    lines = [
        "# What batches need of memory over one epoch",
        "",
        f"FunASR {version}, written by `python -m tests.benchmarks.memory`. {UTTERANCES} utterances of 2 to 40 s"
        f" (seeded, long-tailed), `batch_size={BATCH_SIZE}` frames, `max_token_length={LONGEST}`, one process. Each"
        " batch goes through a small Paraformer, with random features of the batch's shape. *Saved* is what autograd"
        " keeps for the backward pass. *Growth* is the largest need of the whole epoch over that of its first tenth:"
        " 1.00 means that what the epoch needs is there from the beginning.",
        "",
        "| sampler | | batches | empty | over the budget | largest batch (frames) | longest (s)"
        " | largest rows x frames^2 | saved, peak (MB) | growth | longest in each quarter, mean (s) |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case, runs in found.items():
        for name, steps in runs.items():
            full = [each for each in steps if each]
            if not full:
                continue
            over = sum(each["frames"] > BATCH_SIZE for each in full)
            lines.append(
                f"| {CASES[case]['title']} | {name} | {len(full)} | {len(steps) - len(full)} | {over}"
                f" | {max(each['frames'] for each in full):.0f} | {max(each['seconds'] for each in full):.1f}"
                f" | {max(each['area'] for each in full):.3g} | {max(each['saved'] for each in full) / 1e6:.1f}"
                f" | {_grown(full, 'saved')} | {_halves(steps)} |"
            )
            lines += _gpu(full)
    return "\n".join([*lines, "", "![saved bytes per step](memory.svg)", ""])


def _gpu(full: Sequence[Dict[str, float]]) -> List[str]:
    if "reserved" not in full[0]:
        return []
    parts = [f"{what} {max(x[what] for x in full) / 1e6:.0f} MB, growth {_grown(full, what)}" for what in _GPU]
    return [f"| | GPU: {'; '.join(parts)} | | | | | | | | | |"]


_GPU = ("allocated", "reserved")


def plot(found: Dict[str, Dict[str, List[Dict[str, float]]]], file: Path) -> None:
    """Saved bytes per step, one panel a sampler."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "ddpfix"
    from matplotlib import pyplot

    shown = {case: runs for case, runs in found.items() if any(any(steps) for steps in runs.values())}
    figure, panels = pyplot.subplots(len(shown), 1, figsize=(9, 2.6 * len(shown)), squeeze=False)
    for (panel,), (case, runs) in zip(panels, shown.items()):
        for (name, steps), colour in zip(runs.items(), ("#c0392b", "#1f618d")):
            values = [each["saved"] / 1e6 if each else 0 for each in steps]
            panel.plot(range(1, len(values) + 1), values, label=name, color=colour, linewidth=1.2)
        panel.set_title(CASES[case]["title"], fontsize=10)
        panel.set_ylabel("saved (MB)")
        panel.set_ylim(bottom=0)
        panel.legend(fontsize=8)
    panels[-1][0].set_xlabel("step of the epoch")
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where memory.md and memory.svg go")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.device)
        return
    from tests.funasr import launch

    found = both(given.device)
    given.folder.mkdir(parents=True, exist_ok=True)
    text = table(found, launch.version())
    (given.folder / "memory.md").write_text(text)
    print(text)
    try:
        plot(found, given.folder / "memory.svg")
    except ImportError:
        print("no matplotlib: install the extra 'plot' for docs/memory.svg")


if __name__ == "__main__":
    main()
