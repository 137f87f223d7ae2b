"""These tests need one release of SpeechBrain on the path: ``python -m tests.cells speechbrain`` runs them for each."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("speechbrain") is not None else ["test_*.py"]
