"""What time limit the process group has after accelerate and Trainer were given one; ``time_limits.py FOLDER``."""

from __future__ import annotations

import inspect
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Union

import accelerate
import torch
import transformers
from accelerate.utils import InitProcessGroupKwargs
from torch import distributed
from torch.distributed import distributed_c10d

from tests.support import serving


def limit() -> float:
    group: Any = distributed_c10d._get_default_group()
    return float(group._get_backend(torch.device("cpu")).options._timeout.total_seconds())


def group(seconds: Optional[float] = None) -> Any:
    given = {} if seconds is None else {"timeout": timedelta(seconds=seconds)}
    return distributed.init_process_group("gloo", **given)


def accelerator(seconds: Optional[float] = None, **others: Any) -> Any:
    if seconds is not None:
        others["timeout"] = timedelta(seconds=seconds)
    return accelerate.Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(**others)] if others else None)


def trainer(seconds: Optional[int] = None, cpu: bool = True) -> Any:
    known = inspect.signature(transformers.TrainingArguments).parameters
    options: Dict[str, Any] = {"output_dir": "."}
    options["ddp_backend" if "ddp_backend" in known else "xpu_backend"] = "gloo"
    if cpu:
        options["use_cpu" if "use_cpu" in known else "no_cuda"] = True
    if seconds is not None:
        options["ddp_timeout"] = seconds
    return transformers.TrainingArguments(**options)


def default_of_the_class() -> None:
    """gloo has NCCL's limit here, ten minutes."""
    was = distributed_c10d.default_pg_timeout
    distributed_c10d.default_pg_timeout = timedelta(seconds=600)
    try:
        accelerator(1800)
    finally:
        distributed_c10d.default_pg_timeout = was


def positional() -> None:
    group()
    handler = InitProcessGroupKwargs("gloo", None, timedelta(seconds=7200))
    accelerate.Accelerator(cpu=True, kwargs_handlers=[handler])


def waits() -> str:
    """Rank 1 comes two seconds after the group's own limit."""
    group(2)
    distributed.all_reduce(torch.ones(1))
    accelerator(60)
    time.sleep(4 * int(os.environ["RANK"]))
    total = torch.ones(1)
    distributed.all_reduce(total)
    return f"sum {total.item():g}"


CASES: Dict[str, Callable[[], Any]] = {
    "default_of_the_class": default_of_the_class,
    "positional": positional,
    "waits": waits,
    "second_accelerator": lambda: [accelerator(), accelerator(7200)],
    "accelerator_after_trainer": lambda: [trainer(), accelerator(7200)],
    "shorter": lambda: [accelerator(), accelerator(60)],
    "nothing_said": lambda: [group(600), accelerator(backend="gloo")],
    "named_line": lambda: [group(60), accelerator(60)],
    "fresh": lambda: accelerator(7200),
    "trainer_fresh": lambda: trainer(7200),
    # Without a GPU accelerate takes gloo here, too.
    "trainer_not_on_cpu": lambda: trainer(7200, cpu=False),
    "trainer_after_group": lambda: [group(600), trainer(7200)],
    "trainer_shorter": lambda: [group(600), trainer(60)],
    "trainer_nothing_said": lambda: [group(600), trainer()],
    "trainer_parsed_default": lambda: [group(600), trainer(1800)],
    "trainer_named_line": lambda: [group(7200), trainer(7200)],
}


def outcome(case: str) -> Union[str, float]:
    """The limit in seconds, or the words that the case returns; an error is a finding."""
    try:
        found = CASES[case]()
        return found if isinstance(found, str) else limit()
    except RuntimeError as error:
        return f"error: {error}"


def run(scenario: Dict[str, Any], folder: Path) -> None:
    if scenario["active"]:
        import ddpfix

        ddpfix.activate()
    scenario["found"]["outcome"] = outcome(scenario["name"])
    if "error" not in str(scenario["found"]["outcome"]):
        # A rank that is done must not leave while another one still joins.
        distributed.barrier()
        distributed.destroy_process_group()


def main() -> None:
    # Names of transformers are imported on access: before the fork, once for all.
    assert transformers.TrainingArguments and transformers.Trainer
    serving.serve(Path(sys.argv[1]), run)


if __name__ == "__main__":
    main()
