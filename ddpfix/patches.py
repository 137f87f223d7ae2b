"""In a checkout and in an editable install, ``ddpfix.patches`` is the folder ``patches`` at the top.

A module with a ``__path__`` is all that a package is. The wheel holds the real folder and leaves this file out.
"""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parent.parent / "patches")]
