"""The files of a recipe: synthetic speech, a tiny WavLM saved to disk, and the hyperparameters of an installed release.

Run as a script it makes the model, in a process without ddpfix.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any, Dict, List, Optional

from packaging.version import Version

HERE = Path(__file__).parent
TRAIN = HERE / "recipe" / "train.py"
RATE = 16000
# From 1.1.0 on the wrappers live elsewhere, and the old path loads the same files a second time.
OLD_PLACE = "speechbrain.lobes.models.huggingface_transformers"
_CLASSES = {"wavlm": "WavLM", "wav2vec2": "Wav2Vec2"}


def release() -> Version:
    """The installed release of SpeechBrain."""
    return Version(installed("speechbrain"))


def family() -> str:
    """What the release's wrapper can load: before 0.5.12 it knows no WavLM."""
    return "wavlm" if release() >= Version("0.5.12") else "wav2vec2"


def pretrained(
    folder: Path, config: Optional[Dict[str, Any]] = None, kind: str = "", home_of: str = "", **arguments: Any
) -> str:
    """The lines of the yaml that load a tiny model with SpeechBrain's wrapper, or that of another place."""
    kind = kind or family()
    # Up to 0.5.16 the wrapper chooses the class by the name of the folder.
    home = folder / "-".join(["tiny", kind, *(f"{name}{value}" for name, value in sorted((config or {}).items()))])
    if not home.exists():
        make_model(home, kind, **(config or {}))
    given: Dict[str, Any] = {"source": str(home), "save_path": str(folder / "saved"), **arguments}
    given.setdefault("freeze", False)
    given.setdefault("output_norm", False)
    place = f"{home_of}.{kind}.{_CLASSES[kind]}" if home_of else wrapper(kind)
    return "\n".join([f"!new:{place}", *(f"    {name}: {value}" for name, value in given.items())])


def wrapper(kind: str) -> str:
    """Where the installed release has its interface to a kind of model."""
    if release() < Version("1.0.0"):
        return "speechbrain.lobes.models.huggingface_wav2vec.HuggingFaceWav2Vec2"
    if release() < Version("1.1.0"):
        return f"speechbrain.lobes.models.huggingface_transformers.{kind}.{_CLASSES[kind]}"
    return f"speechbrain.integrations.huggingface.{kind}.{_CLASSES[kind]}"


def seeding() -> str:
    return "torch.manual_seed" if release() < Version("1.0.2") else "speechbrain.utils.seed_everything"


def write(folder: Path, name: str = "train.yaml", encoder: str = "", **changes: Any) -> Path:
    """The yaml of the recipe with top-level values of its own, and the speech that it names; returns its path."""
    speech(folder)
    text = (HERE / "recipe" / "train.yaml").read_text()
    filled = {"seeding": seeding(), "folder": str(folder), "encoder": encoder or pretrained(folder)}
    for word, value in filled.items():
        text = text.replace(f"[{word}]", value)
    lines = text.splitlines()
    for key, value in changes.items():
        places = [number for number, line in enumerate(lines) if line.startswith(f"{key}:")]
        if places:
            lines[places[0]] = f"{key}: {value}"
        else:
            lines.insert(0, f"{key}: {value}")
    file = folder / name
    file.write_text("\n".join(lines) + "\n")
    return file


def speech(folder: Path, train: int = 12, valid: int = 4) -> None:
    """Manifests and wav files: every letter of a word is a tone, so lengths differ from one utterance to the next."""
    if (folder / "valid.json").exists():
        return
    import numpy
    import soundfile

    generator = numpy.random.default_rng(7)
    (folder / "wav").mkdir(parents=True, exist_ok=True)
    for part, count in (("train", train), ("valid", valid)):
        manifest: Dict[str, Any] = {}
        for number in range(count):
            letters: List[int] = generator.integers(0, 5, size=3 + number % 4).tolist()
            time = numpy.arange(int(0.12 * RATE)) / RATE
            tones = [numpy.sin(2 * numpy.pi * (200 + 150 * letter) * time) for letter in letters]
            wave = numpy.concatenate(tones) * 0.3 + 0.01 * generator.standard_normal(len(letters) * len(time))
            file = folder / "wav" / f"{part}{number:02}.wav"
            soundfile.write(file, wave.astype("float32"), RATE)
            words = "".join(chr(ord("a") + letter) for letter in letters)
            manifest[file.stem] = {"wav": str(file), "words": words, "duration": len(wave) / RATE}
        (folder / f"{part}.json").write_text(json.dumps(manifest))


def make_model(home: Path, kind: str, **config: Any) -> None:
    """Save a random tiny model as ``save_pretrained`` does, from a process of its own, without ddpfix."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DDPFIX")}
    command = [sys.executable, "-W", "ignore", "-m", "tests.speechbrain.recipes", str(home), kind, json.dumps(config)]
    subprocess.run(command, cwd=HERE.parent.parent, env=environ, check=True)


def _make_model(home: str, kind: str, config: Dict[str, Any]) -> None:
    import inspect

    import torch
    from transformers import AutoConfig, AutoModel, Wav2Vec2FeatureExtractor

    torch.manual_seed(99)
    sizes = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 24}
    # The strides of the real one, so that lengths come out as SpeechBrain expects them.
    convolutions = {"conv_dim": (8,) * 7, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    silent = ("hidden_dropout", "attention_dropout", "feat_proj_dropout", "final_dropout", "activation_dropout")
    given = {
        **sizes,
        **convolutions,
        "layerdrop": 0.5,
        "vocab_size": 8,
        **dict.fromkeys(silent, 0.0),
        **config,
    }
    model = AutoModel.from_config(AutoConfig.for_model(kind, **given))
    # Up to 0.5.16 SpeechBrain finds torch's format only.
    old = "safe_serialization" in inspect.signature(model.save_pretrained).parameters
    model.save_pretrained(home, **({"safe_serialization": False} if old else {}))
    Wav2Vec2FeatureExtractor(do_normalize=True, return_attention_mask=True).save_pretrained(home)


if __name__ == "__main__":
    _make_model(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
