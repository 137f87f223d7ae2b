"""Stands in for ddpfix.pth where ddpfix runs from a checkout; on the path only if ``ddpfix run`` put it there.

Python imports the first ``sitecustomize`` that it finds. This one arms ddpfix and then makes room for the user's own.
"""

import os
import sys


def _arm() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != here]
    if os.environ.get("DDPFIX", "0") == "0":
        return
    root = os.path.dirname(os.path.dirname(here))
    # Once the package is imported it finds its modules by itself, and the program's path is what it was.
    sys.path.insert(0, root)
    try:
        import ddpfix._boot

        ddpfix._boot.start()
    except (Exception, SystemExit) as error:
        _say(f"ddpfix: not activated: {error!r} (reinstall ddpfix, or unset DDPFIX)\n")
    finally:
        sys.path.remove(root)


def _say(line: str) -> None:
    try:
        os.write(sys.stderr.fileno(), line.encode("utf-8", "backslashreplace"))
    except Exception:
        # Where stderr is closed or full the line cannot be shown.
        return


def _pass_on() -> None:
    """Import the sitecustomize that Python would have found without us, if there is one."""
    ours = sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        # The import system looks for the module that it is importing, which is this one.
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


_arm()
_pass_on()
