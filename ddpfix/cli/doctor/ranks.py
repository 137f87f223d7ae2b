"""``doctor --ranks``: whether these ranks can communicate, and what differs between them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections import defaultdict
from datetime import timedelta
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from rich.console import Group
from rich.table import Table

from ddpfix import __version__, _switch
from ddpfix.cli import plan
from ddpfix.cli.doctor import examination, screen
from ddpfix.cli.doctor.examination import BLOCKS, WARNING, Problem
from ddpfix.cli.plan import plain
from ddpfix.matrix import detect, loader, resolve

# Ranks and values that are named; of more there is a count.
_SHOWN = 20
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_BUCKET = 25 << 20
_CURE = "check that each rank was started, and that the hosts reach each other (interface, firewall)"


def show(limit: float, backend: Optional[str], as_json: bool) -> int:
    """Run the collectives, print on rank 0 what was found; return 1 if it stops a training, 2 without a launcher."""
    missing = [name for name in _NEEDED if not os.environ.get(name, "").strip()]
    if missing:
        how = "torchrun --nproc_per_node 2 -m ddpfix doctor --ranks"
        _switch.say(f"--ranks needs a launcher ({', '.join(missing)} not set): {how}")
        return 2
    with _own_output():
        report = examination.make()
        try:
            result = _together(report, limit, backend)
        except Exception as error:
            _switch.say(f"rank {os.environ['RANK']}: {examination.error(error)}: {_CURE}")
            return 1
        if result is None:
            return 0
        if as_json:
            sys.stdout.write(json.dumps(result, indent=2) + "\n")
        else:
            plan.new_console().print(_screen(result))
        return 1 if result["blocked"] else 0


@contextlib.contextmanager
def _own_output() -> Iterator[None]:
    """Send what libraries print to stderr: gloo of torch 2.8 writes to descriptor 1, amid the JSON."""
    plain_output = sys.stdout
    try:
        plain_output.flush()
        kept = os.dup(plain_output.fileno())
    except (AttributeError, OSError, ValueError):
        # No such descriptor: there is nothing that a library could write to.
        yield
        return
    os.dup2(2, plain_output.fileno())
    with open(kept, "w", encoding=plain_output.encoding, errors=plain_output.errors, closefd=False) as sys.stdout:
        try:
            yield
        finally:
            sys.stdout.flush()
            os.dup2(kept, plain_output.fileno())
            os.close(kept)
            sys.stdout = plain_output


def _together(report: Mapping[str, Any], limit: float, backend: Optional[str]) -> Optional[Dict[str, Any]]:
    """Return the result of all ranks on rank 0, None on the others."""
    import torch
    from torch import distributed

    takes = backend or report["network"].get("backend") or "gloo"
    device = torch.device("cpu")
    if takes == "nccl":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    begun = time.perf_counter()
    distributed.init_process_group(takes, timeout=timedelta(seconds=limit))
    try:
        rank, size = distributed.get_rank(), distributed.get_world_size()
        group_seconds = time.perf_counter() - begun
        tensor = torch.full((_BUCKET // 4,), float(rank + 1), device=device)
        begun = time.perf_counter()
        distributed.all_reduce(tensor)
        own = {
            "rank": rank,
            "host": socket.gethostname(),
            "right": bool((tensor == size * (size + 1) / 2).all()),
            "all_reduce_ms": 1e3 * (time.perf_counter() - begun),
            "facts": _facts(report),
            "must_be_equal": _agreed(report),
            "findings": report["findings"],
        }
        every: List[Any] = [None] * size
        distributed.all_gather_object(every, own)
    finally:
        distributed.destroy_process_group()
    return _result(every, takes, group_seconds) if rank == 0 else None


def _facts(report: Mapping[str, Any]) -> Dict[str, str]:
    """Return what may differ between ranks that train together."""
    versions, torch = report["versions"], report["versions"].get("torch", {})
    facts = {
        "Python": versions.get("python"),
        **{f"torch {name}": torch.get(name) for name in ("cuda", "nccl")},
        "gloo would use": report["network"].get("gloo_would_use"),
        "/dev/shm MiB": report["limits"].get("shared_memory_mib"),
        "open files": report["limits"].get("open_files"),
    }
    return {name: screen.said(value) for name, value in facts.items()}


def _agreed(report: Mapping[str, Any]) -> Dict[str, str]:
    """Return what ranks compare before they wrap a model: a job ends where it differs."""
    whole = loader.load()
    values, errors = examination.read_settings(whole)
    toolkits = detect.installed_versions(whole)
    found = resolve.facts(__version__, ("torch",), values, resolve.resolve(whole, toolkits, values))
    found.update({f"refused setting {number}": error for number, error in enumerate(errors)})
    return {"DDPFIX": report["activation"]["switch"], **{n: v for n, v in toolkits.items() if v}, **found}


def _result(every: Sequence[Mapping[str, Any]], backend: str, group_seconds: float) -> Dict[str, Any]:
    """Return the result of all ranks; its size does not grow with their number."""
    findings = [*_differences(every, "must_be_equal", BLOCKS), *_differences(every, "facts", WARNING)]
    wrong = [each["rank"] for each in every if not each["right"]]
    if wrong:
        text = f"all_reduce gave a wrong sum on rank {_listed(wrong)}"
        findings.append(Problem(BLOCKS, "ranks", text, "the network or a GPU corrupts data: train without these hosts"))
    having: Dict[Problem, List[int]] = defaultdict(list)
    for each in every:
        for found in each["findings"]:
            having[Problem(**found)].append(each["rank"])
    findings += [one._replace(text=f"{one.text} [rank {_listed(ranks)}]") for one, ranks in having.items()]
    times = [each["all_reduce_ms"] for each in every]
    return {
        **examination.judged(findings),
        "world_size": len(every),
        "backend": backend,
        "group_seconds": group_seconds,
        "all_reduce_ms": {"least": min(times), "most": max(times), "slowest_rank": times.index(max(times))},
        "ranks": [{name: each[name] for name in ("rank", "host", "all_reduce_ms", "facts")} for each in every[:_SHOWN]],
    }


def _differences(every: Sequence[Mapping[str, Any]], kind: str, level: str) -> Iterator[Problem]:
    """Yield a finding for each fact that differs, with the ranks by its value."""
    for name in dict.fromkeys(name for each in every for name in each[kind]):
        ranks: Dict[str, List[int]] = defaultdict(list)
        for each in every:
            ranks[each[kind].get(name, "")].append(each["rank"])
        if len(ranks) > 1:
            shown = [f"{value or 'not set'} on rank {_listed(own)}" for value, own in list(ranks.items())[:4]]
            more = f", and {len(ranks) - 4} more values" if len(ranks) > 4 else ""
            cure = "give all ranks the same environment and installation"
            yield Problem(level, "ranks", f"{name} differs: {', '.join(shown)}{more}", cure)


def _listed(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else ""
    return ", ".join(map(str, ranks[:_SHOWN])) + more


def _screen(result: Mapping[str, Any]) -> Group:
    size, shown = result["world_size"], result["ranks"]
    names = [name for name in shown[0]["facts"] if name != "Python"]
    table = Table()
    for heading in ("rank", "host", "all_reduce of 25 MB", *names):
        table.add_column(heading, overflow="fold")
    for each in shown:
        cells = [str(each["rank"]), each["host"], f"{each['all_reduce_ms']:.1f} ms"]
        table.add_row(*map(plain, [*cells, *(each["facts"][name] for name in names)]))
    head = plain(f"ddpfix {__version__}: doctor, {size} ranks, backend {result['backend']}")
    rest = [plain(f"and {size - len(shown)} more ranks")] if size > len(shown) else []
    return Group(head, screen.problems(result["findings"]), table, *rest)
