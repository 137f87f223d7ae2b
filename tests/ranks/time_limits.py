"""What time limit the process group has after accelerate and Trainer were given one.

``time_limits.py FOLDER`` serves a pool, ``time_limits.py FOLDER CASE`` runs one case under torch elastic.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Dict, Optional, Union

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


def group(seconds: Optional[float] = None) -> None:
    given = {} if seconds is None else {"timeout": timedelta(seconds=seconds)}
    distributed.init_process_group("gloo", **given)


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


def second_accelerator() -> None:
    accelerator()
    accelerator(7200)


def accelerator_after_trainer() -> None:
    trainer()
    accelerator(7200)


def positional() -> None:
    group()
    handler = InitProcessGroupKwargs("gloo", None, timedelta(seconds=7200))
    accelerate.Accelerator(cpu=True, kwargs_handlers=[handler])


def shorter() -> None:
    accelerator()
    accelerator(60)


def nothing_said() -> None:
    group(600)
    accelerator(backend="gloo")


def named_line() -> None:
    group(60)
    accelerator(60)


def fresh() -> None:
    accelerator(7200)


def trainer_fresh() -> None:
    trainer(7200)


def trainer_not_on_cpu() -> None:
    """Without a GPU accelerate takes gloo here, too."""
    trainer(7200, cpu=False)


def trainer_after_group() -> None:
    group(600)
    trainer(7200)


def trainer_shorter() -> None:
    group(600)
    trainer(60)


def trainer_nothing_said() -> None:
    group(600)
    trainer()


def trainer_parsed_default() -> None:
    group(600)
    trainer(1800)


def trainer_named_line() -> None:
    group(7200)
    trainer(7200)


def waits() -> str:
    """Rank 1 comes two seconds after the group's own limit."""
    group(2)
    distributed.all_reduce(torch.ones(1))
    accelerator(60)
    time.sleep(4 * int(os.environ["RANK"]))
    total = torch.ones(1)
    distributed.all_reduce(total)
    return f"sum {total.item():g}"


def outcome(case: str) -> Union[str, float]:
    """The limit in seconds, or what the case returns; an error is a finding."""
    try:
        return globals()[case]() or limit()
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
    folder, *cases = sys.argv[1:]
    if not cases:
        # Names of transformers are imported on access: before the fork, once for all.
        assert transformers.TrainingArguments and transformers.Trainer
        serving.serve(Path(folder), run)
    else:
        found = outcome(cases[0])
        Path(folder, f"rank{os.environ['RANK']}.json").write_text(json.dumps(found))
        distributed.barrier()
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
