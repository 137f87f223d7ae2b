"""The first cause is what the user reads last when one rank of fastNLP 1.0.x fails.

The failing rank ends the others with SIGKILL, whatever they were about to say, before its own traceback is printed.
Rank 0 is the command that the user (or a container, or a queue) waits for, so the traceback may never be seen, and
torchrun names the SIGKILL of rank 0 as the first failure. A rank that only notices that another one is gone
("Connection closed by peer") does the same, and its message comes last. A failure in an evaluation during training
passes the same place twice; the second time the others are gone, and "No such process" takes the place of the error.

Here the rank that fails first says so before anything else, and tells the others through the process group's store. One
that only follows waits for that rank to speak, and the last words of every rank name the first one (torch.failures).
"""

from __future__ import annotations

import os
import sys
import traceback
from types import ModuleType
from typing import Any, Callable, List, Optional

from ddpfix import log
from ddpfix.exchange import failure_records
from ddpfix.monitor.exit import error_file, last_words
from ddpfix.patching import temporary
from ddpfix.patching.checks import needs_names
from ddpfix.patching.site import Site
from ddpfix.system import System, Wait
from ddpfix.unlisted_thread import answer

# Seconds: for the first rank to say what it has to say, and for an answer of the store, which may have gone.
_PATIENCE = 5.0
_STORE = 2.0


def first(site: Site, module: ModuleType, owner: Any) -> None:
    """Wrap ``TorchDDPDriver.on_exception``, which all of fastNLP's distributed drivers for torch inherit."""
    needs_names(owner, "on_exception", "destroy_process_group")
    site.wrap(owner, "on_exception", _failed)


def _failed(wrapped: Any, driver: Any, args: Any, kwargs: Any) -> Any:
    error = sys.exc_info()[1]
    if not log.first_time("failed", driver):
        return None
    if error is not None and not isinstance(error, KeyboardInterrupt):
        _say(driver, error)
    return _end_others(wrapped, driver, args, kwargs)


def _say(driver: Any, error: BaseException) -> None:
    """Report the cause, if it is this rank's; else wait for the rank whose cause it is."""
    rank = driver.global_rank
    is_victim = last_words.follows(error)
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
    if not is_victim and _asked(lambda: failure_records.claim(last_words.finding(rank, None, error)), True):
        _print(driver, f"\nddpfix: rank {rank} failed first and ends the other ranks. The cause:\n{text}\n")
        if error_file.write(error):
            # The others, which this rank ends now, are not to be taken for the first.
            error_file.next_second()
        return
    # The first rank ends this one when it has reported its cause.
    _wait_for_the_first([pid for pid in driver._pids or () if pid != os.getpid()])
    if not is_victim:
        _print(driver, f"\nddpfix: rank {rank} failed too. The cause:\n{text}\n")


def _wait_for_the_first(pids: List[int]) -> None:
    wait = Wait()
    while wait.seconds() < _PATIENCE:
        if _asked(failure_records.cause, None) or not all(map(_is_there, pids)):
            # It may be about to end this rank; if it cannot, this one goes on by itself.
            System.pause(1)
            return
        wait.pause(0.1)


def _asked(ask: Callable[[], Any], otherwise: Any) -> Any:
    return answer(ask, _STORE, otherwise)


def _is_there(pid: int) -> bool:
    """Return whether a process is still there; one that has ended and has not been waited for is."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _print(driver: Any, text: str) -> None:
    """Write to this rank's screen, and to rank 0's if nobody reads this one's."""
    sys.stdout.flush()
    sys.stderr.write(text)
    sys.stderr.flush()
    if driver.global_rank == 0 or getattr(driver, "output_from_new_proc", "all") in ("all", "only_error"):
        return
    if getattr(driver, "is_pull_by_torch_run", True):
        return
    try:
        # Rank 0 waits in a collective and is about to be ended, so it can print nothing itself.
        with open(f"/proc/{driver._pids[0]}/fd/2", "a", encoding="utf-8") as screen:
            screen.write(text)
    except (OSError, TypeError, IndexError) as problem:
        log.debug(f"rank 0's screen cannot be written to: {problem!r}")


def _end_others(wrapped: Any, driver: Any, args: Any, kwargs: Any) -> Any:
    """fastNLP's own end, for those that are still there; what goes wrong in it must not hide the cause."""
    pids: Optional[List[int]] = driver._pids
    there = pids and [pid for pid in pids if pid == os.getpid() or _is_there(pid)]
    try:
        with temporary.replaced(driver, "_pids", there):
            return wrapped(*args, **kwargs)
    except Exception as problem:
        log.debug(f"the others could not be ended: {problem!r}")
        return None
