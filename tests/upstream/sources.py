"""Toolkits whose own tests are in no wheel: which files of a checkout, what is left out, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Tuple


@dataclass(frozen=True)
class Source:
    """The tests of a toolkit in a checkout of it.

    Attributes:
        package: the name of the distribution that is tested, which is installed, and not what the checkout has.
        version: the file of the checkout that has its version.
        parts: what is copied from the checkout to where the tests run.
        files: patterns of the test files.
        tag: what to check out, in words.
        wrong: what the file of the version says in a tag of another release, and that release.
    """

    package: str
    version: str
    parts: Tuple[str, ...]
    files: Tuple[str, ...]
    tag: str
    wrong: Dict[str, str] = field(default_factory=dict)


# Families with LayerDrop, or whose forward a patch of transformers touches.
FAMILIES = ("wav2vec2", "hubert", "wavlm", "whisper", "bart", "mbart", "opt", "speech_to_text")

SOURCES: Dict[str, Source] = {
    "speechbrain": Source(
        "speechbrain",
        "speechbrain/version.txt",
        ("tests", "conftest.py", "pytest.ini"),
        ("tests/unittests/test_*.py", "tests/integration/*/example_*.py"),
        "the tag vVERSION",
        # v1.1.0 is v1.0.4 as well, with the same sources as the wheel of 1.1.0 but for this file.
        {"1.0.4": "1.1.0"},
    ),
    "funasr": Source("funasr", "funasr/version.txt", ("tests",), ("tests/test_*.py",), "the tag vVERSION"),
    "transformers": Source(
        "transformers",
        "src/transformers/__init__.py",
        ("tests", "utils", "conftest.py", "pyproject.toml"),
        tuple(f"tests/models/{name}/test_modeling_{name}.py" for name in FAMILIES)
        + ("tests/trainer/test_trainer*.py", "tests/trainer/test_data_collator.py"),
        "the tag vVERSION, or the commit of main at which the branch of that release begins (VERSION.dev0)",
    ),
}

# Why a file or a test is not run; by toolkit, a part of its name.
LEFT_OUT: Dict[str, Dict[str, str]] = {
    "speechbrain": {
        "test_hpopt": "it needs orion, which is no requirement of SpeechBrain",
    },
    "funasr": {},
    "transformers": {
        "IntegrationTest": "it loads weights from a hub",
    },
}
