"""A file in which ranks meet (``init_method="file://..."``) that an earlier run has left behind.

torch removes such a file when all ranks have ended well. A run that was killed leaves it, with the addresses of ranks
that are no more: the next run waits for these for ever, or is refused (wenet issue 1507, where nobody knew why). No
rank can tell whether another one of its own run has written the file, so it stays; but where a group does not come up,
its age is told.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from types import ModuleType
from typing import Any, ContextManager, Dict, Iterator, Optional, Tuple

from ddpfix import log
from ddpfix.patching.site import Site
from ddpfix.unlisted_thread import Background

from ..pipeline.process_group import Follower, ProcessGroup

# Seconds after which a group that does not come up is told about.
_PATIENCE = 30.0
# Seconds by which a file has to be older than the launcher: a clock of another machine may have set its time.
_MARGIN = 2.0
_SCHEME = "file://"


class InitFile(Follower):
    """Logs the age of an old file where the group does not come up."""

    place = "init_file"

    def coming_up(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> ContextManager[None]:
        line = _about(_file(args, kwargs))
        return _watched(line) if line else contextlib.nullcontext()


def group(site: Site, module: ModuleType, owner: Any) -> None:
    site.keep(ProcessGroup).follow(site, module, InitFile())


@contextlib.contextmanager
def _watched(line: str) -> Iterator[None]:
    is_up = threading.Event()

    def watch() -> None:
        if not is_up.wait(_PATIENCE):
            log.on_every_rank(line)

    Background(watch)
    try:
        yield
    except Exception:
        log.on_every_rank(line)
        raise
    finally:
        is_up.set()


def _file(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[str]:
    method = kwargs.get("init_method", args[1] if len(args) > 1 else None)
    if not isinstance(method, str) or not method.startswith(_SCHEME):
        return None
    return method[len(_SCHEME) :].partition("?")[0]


def _about(file: Optional[str]) -> str:
    """Return a sentence about a file that is older than this job; "" for another one."""
    try:
        # The process that has started this rank began then, as far as the system tells it.
        found, begun = os.stat(file or ""), os.stat(f"/proc/{os.getppid()}").st_mtime
    except OSError:
        return ""
    if not found.st_size or found.st_mtime > begun - _MARGIN:
        return ""
    written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.st_mtime))
    return (
        f"init_process_group has not returned. The ranks rendezvous in the file {file}, last written at {written},"
        " before this job started. If a killed run left it behind, ranks wait for that run: delete it before each start"
    )
