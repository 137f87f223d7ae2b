"""Stands in for ddpfix.pth where ddpfix runs from a checkout; on the path only if ``ddpfix run`` put it there.

Python imports the first ``sitecustomize`` that it finds. This one arms ddpfix and then makes room for the user's own.
"""

import os
import sys


def _arm() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != here]
    root = os.path.dirname(os.path.dirname(here))
    sys.path.append(root)
    try:
        import ddpfix._boot

        ddpfix._boot.start()
    except BaseException as error:
        if sys.stderr:
            sys.stderr.write("ddpfix: not activated: %r\n" % error)


def _pass_on() -> None:
    """Import the sitecustomize that Python would have found without us, if there is one."""
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        # The import system looks for the module that it is importing, which is this one.
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


_arm()
_pass_on()
