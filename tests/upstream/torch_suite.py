"""torch's own tests of DDP, which ship in its wheel, each on two ranks on the CPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, List, Sequence

from tests.support import ranks
from tests.upstream.outcomes import Outcome

# Tests by name: those of DDP, and those of what is built on it.
ABOUT = re.compile(
    r"ddp|DistributedDataParallel|static_graph|join|no_sync|hook|unused|uneven|reducer|bucket|model|localSGD"
    r"|undefined_grad|different_graph|data_parallel|SyncBatchNorm|sync_bn|average_parameters",
    re.IGNORECASE,
)
# A quick subset that has something of everything, for CI.
QUICK = (
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_ddp_create_graph",
    "test_ddp_grad_div_uneven_inputs",
    "test_ddp_ignore_params_arg",
    "test_ddp_logging_data_cpu",
    "test_ddp_shared_grad_acc_unused_params",
    "test_ddp_uneven_input_join_disable",
    "test_ddp_unused_params_rebuild_buckets_exception",
    "test_grads_same_across_ranks_with_no_sync",
    "test_output_unused_in_loss_dict_module",
    "test_stateless_api_with_ddp",
    "test_static_graph_api_cpu",
    "test_undefined_grad_parity_unused_parameters",
)
# It trains many large models, for more than six minutes on two cores.
TOO_LONG = ("test_ddp_uneven_inputs",)
# Seconds for one test; the slowest takes 15 on two idle cores.
LIMIT = 90.0


def names(pattern: str = "") -> List[str]:
    """The tests about DDP whose name contains ``pattern``, a regular expression."""
    script = "from tests.upstream import torch_child; print('\\n'.join(torch_child.names()))"
    output = subprocess.check_output([sys.executable, "-c", script], env=environment({}), cwd=ranks.ROOT, text=True)
    about = [name for name in output.split() if ABOUT.search(name) and name not in TOO_LONG]
    return [name for name in about if re.search(pattern, name)]


def environment(more: Dict[str, str]) -> Dict[str, str]:
    """torch's tests look for these when they are imported."""
    own = {"BACKEND": "gloo", "WORLD_SIZE": "2", "TEMP_DIR": tempfile.gettempdir(), "CUDA_VISIBLE_DEVICES": ""}
    return ranks.environment({**own, **more})


def run(tests: Sequence[str], more: Dict[str, str], limit: float = LIMIT) -> Dict[str, Outcome]:
    """The outcome of each test (a method) with these environment variables, within so many seconds each."""
    found: Dict[str, Outcome] = {}
    left = list(tests)
    with tempfile.TemporaryDirectory(prefix="ddpfix-upstream-") as folder:
        environ, record = environment({**more, "TEMP_DIR": folder}), Path(folder, "found.jsonl")
        while left:
            record.write_text("")
            command = [sys.executable, "-m", "tests.upstream.torch_child", str(record), str(limit), *left]
            # It ends by itself where a test takes much longer than it may.
            _, output = ranks.once(command, environ, ranks.ROOT, len(left) * 3 * limit)
            for line in map(json.loads, record.read_text().splitlines()):
                found[line["name"]] = Outcome(**line["outcome"])
            # A process that ends in the midst of a test has written nothing for it, and the rest is for a new one.
            left = [name for name in left if name not in found]
            if left:
                found[left.pop(0)] = Outcome("failed", 0.0, f"the process of the tests ended\n{output[-2000:]}")
    return {name: found[name] for name in tests}
