"""Looks for inputs that end in an undocumented error: ``python -m tests.hostile.fuzz [TARGET] [--seconds 60]``.

atheris (extra ``fuzz``) changes the inputs by which lines of ddpfix they reach; tests/hostile has what was found, as
examples. An input that fails is left as ``crash-...`` in the folder in which the command runs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Callable, Dict, List, Sequence

# Inputs to begin with, and their most bytes.
_SEEDS, _LONGEST = "corpus", 4096
Look = Callable[[bytes, Path], None]


def matrix(content: bytes, folder: Path) -> None:
    """A matrix as YAML: read, or a MatrixError; all code that it names is shipped."""
    from tests.hostile import test_matrix

    test_matrix.check(test_matrix.read(folder, content))


def compiled_matrix(content: bytes, folder: Path) -> None:
    """A compiled matrix: read, or left."""
    from ddpfix.matrix import compiled

    # The digest in front is that of what follows, as if somebody had made the file on purpose.
    compiled.of(compiled.digest(content).encode() + b"\n" + content)


def settings(content: bytes, folder: Path) -> None:
    """A table of settings in pyproject.toml: read, or a SettingsError."""
    from tests.hostile import test_settings

    (folder / "pyproject.toml").write_bytes(content)
    test_settings.read(folder)


def variables(content: bytes, folder: Path) -> None:
    """Names and values of variables, line by line: read, or a SettingsError."""
    from tests.hostile import test_settings

    words = content.decode("utf-8", "surrogateescape").split("\n")
    test_settings.read(folder.parent, {f"DDPFIX_{name}": value for name, value in zip(words[::2], words[1::2])})


def command(content: bytes, folder: Path) -> None:
    """Words of the command line: a result, or one line and the code 2."""
    from ddpfix.cli.main import main

    words = content.decode("utf-8", "surrogateescape").split("\n")
    if words[0] in ("run", "demo", "doctor", "probe"):
        # These start programs.
        return
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet), contextlib.suppress(SystemExit):
        main(words)


def lines(content: bytes, folder: Path) -> None:
    """The lines of a trace: shown, or one line that says why not."""
    from tests.hostile import test_traces

    (folder / "rank-00000.jsonl").write_bytes(content)
    test_traces.look(folder)


TARGETS: Dict[str, Look] = {
    each.__name__: each for each in (matrix, compiled_matrix, settings, variables, command, lines)
}


def seeds(name: str) -> List[bytes]:
    """Inputs that are right, from which others are made."""
    from tests.unit.test_matrix import GOOD

    if name == "lines":
        return _trace()
    known = {
        "matrix": [GOOD.encode()],
        "compiled_matrix": [_compiled()],
        "settings": [b'[tool.ddpfix]\nunused = "late"\nseed = 7\nlayerdrop = "off"\ntorch_late = 0\n'],
        "variables": [b"UNUSED\nlate\nSEED\n7\nTRACE\n/nowhere\nTORCH_LATE\n0"],
        "command": [b"plan\n--all", b"explain\ntorch.late", b"report\nx\n--json\n-"],
    }
    return known[name]


def _compiled() -> bytes:
    from ddpfix.matrix.compiling import write
    from tests.hostile import test_matrix
    from tests.unit.test_matrix import GOOD

    with tempfile.TemporaryDirectory() as place:
        whole = test_matrix.read(Path(place), GOOD.encode())
    assert whole is not None
    return write.dump(whole, b"").encode().partition(b"\n")[2]


def _trace() -> List[bytes]:
    from tests.support import traces

    with tempfile.TemporaryDirectory() as place:
        folder = traces.write(Path(place), 1, 4, own_layers=True)
        return [(folder / "rank-00000.jsonl").read_bytes()]


def fuzz(name: str, seconds: int) -> None:
    """Run one target in this process, which ends with it.

    Args:
        name: of the target.
        seconds: how long.
    """
    import atheris

    with atheris.instrument_imports(include=["ddpfix"]):
        import ddpfix.cli.main
        import ddpfix.matrix.compiled
        import ddpfix.matrix.compiling.reader
        import ddpfix.trace.reader  # noqa: F401
    with tempfile.TemporaryDirectory() as place:
        folder, corpus = Path(place) / "x", Path(place) / _SEEDS
        folder.mkdir()
        corpus.mkdir()
        for number, content in enumerate(seeds(name)):
            (corpus / str(number)).write_bytes(content)
        limits = [f"-max_total_time={seconds}", f"-max_len={_LONGEST}", "-timeout=60", "-rss_limit_mb=4096"]
        atheris.Setup([sys.argv[0], *limits, str(corpus)], lambda content: TARGETS[name](content, folder))
        atheris.Fuzz()


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.fuzz", description=__doc__)
    parser.add_argument("target", nargs="?", choices=list(TARGETS), help="one of them; all, one after the other")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (60)")
    given = parser.parse_args(words)
    if given.target:
        fuzz(given.target, given.seconds)
        return 0
    command = [sys.executable, "-m", "tests.hostile.fuzz", "--seconds", str(given.seconds)]
    codes = {name: subprocess.run([*command, name], check=False).returncode for name in TARGETS}
    print(", ".join(f"{name}: {'nothing found' if code == 0 else f'code {code}'}" for name, code in codes.items()))
    return 1 if any(codes.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
