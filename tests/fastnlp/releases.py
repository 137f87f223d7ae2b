"""Which release of fastNLP is installed; its metadata tells, ``fastNLP.__version__`` is wrong in four of six."""

from __future__ import annotations

from importlib.metadata import version

from packaging.version import Version

# What a rank prints at once when DDP raises, before another rank can end it.
RAISED = "DDP raised: "


def release() -> Version:
    return Version(version("fastNLP"))


def has_drivers() -> bool:
    """Whether ``Trainer`` trains on several ranks (1.0.x); before, ``DistTrainer`` does."""
    return release() >= Version("1.0.0")
